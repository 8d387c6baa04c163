"""Names of an evaluation's files, which can be read without all that makes them."""

RESULT, PAGE = "evaluation.json", "report.html"
