"""Calibrate a campaign: from frozen scores to a decision, with its uncertainty, by rules fixed before the data.

    load          campaign folder → one tidy table (results), bound by digests (bindings), with intention to treat
    effects       arms × marks × metrics against the reference, one family (paired: the tests themselves)
    guardrails    ok | broken | inconclusive
    decide        responsive marks → budget, primary metric, known arms; or what was prescribed; or a refusal
    power         how many seeds a confirmatory trial needs
    surface       fitted over log level × log epoch
    stance        what each author expected against what came out
    build         all of it as calibration.json, whose form is ``vqkit.formats.calibration``
    report        the same for people: sentences, tables, figures; pictures of a few runs (shown)
    tensorboard   training curves for who wants them there

It reads what the evaluator wrote and froze, never evidence, never what is sealed.
"""
