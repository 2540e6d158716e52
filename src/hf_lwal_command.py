"""What the console script ``hf-lwal`` runs.

It stands beside the package because ``import hf_lwal`` acquaints transformers with the models, which takes seconds,
and a help text should not wait for that. Here the command line is imported without it; `hf_lwal.cli.main` makes up for
it before a command runs.
"""

loading = False
"""Whether the command line is being imported: ``hf_lwal`` looks at it."""


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    global loading
    loading = True
    try:
        from hf_lwal import cli
    finally:
        loading = False
    return cli.program()


if __name__ == "__main__":
    import runpy

    runpy.run_module("hf_lwal", run_name="__main__")
