"""How the paper is cited."""

LWAL = """\
@article{yu2022lwal,
  title   = {Improving Model Training via Self-learned Label Representations},
  author  = {Yu, Xiao and Verma, Nakul},
  journal = {arXiv preprint arXiv:2209.04528},
  year    = {2022}
}"""
