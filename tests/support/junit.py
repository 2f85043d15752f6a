"""Reads JUnit XML with Python's own parser, as CI systems do, and holds it against the conventions they rely on."""

import re
from dataclasses import dataclass
from xml.etree import ElementTree as ET


@dataclass
class Read:
    """`verdicts`: what a CI system shows for each (classname, name)."""

    root: ET.Element
    verdicts: dict[tuple[str, str], str]
    messages: dict[str, str]

    def of(self, name):
        (found,) = [said for (_, case), said in self.verdicts.items() if case == name]
        return found

    @property
    def red(self):
        return [name for (_, name), said in self.verdicts.items() if said in ("failure", "error")]


def read_junit(path):
    """Ant's schema as far as Jenkins, GitLab and GitHub's reporters hold to it: counts that add up, times that are
    numbers, a time without zone, attributes that are there, one result a case, and no two cases of one name.
    """
    root = ET.parse(path).getroot()
    assert root.tag == "testsuites"
    verdicts, messages = {}, {}
    for suite in root:
        assert suite.tag == "testsuite"
        assert suite.get("name")
        assert suite.get("hostname")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp"))
        assert [child.tag for child in suite if child.tag != "testcase"] in ([], ["properties"])
        for case in suite.iter("testcase"):
            told = [child for child in case if child.tag in ("failure", "error", "skipped")]
            assert len(told) <= 1
            assert float(case.get("time")) >= 0
            key = (case.get("classname"), case.get("name"))
            assert all(key)
            assert key not in verdicts  # GitLab takes the first of a name only
            verdicts[key] = told[0].tag if told else "pass"
            for why in told:
                assert why.get("type")
                assert why.get("message") == why.text  # Jenkins shows the message, GitLab the text
                messages[case.get("name")] = why.text
        _counts(suite, [suite])
        assert float(suite.get("time")) == sum(float(case.get("time")) for case in suite.iter("testcase"))
    _counts(root, list(root))
    assert float(root.get("time")) == sum(float(suite.get("time")) for suite in root)
    return Read(root, verdicts, messages)


def _counts(element, suites):
    for attribute, path in (("tests", "testcase"), ("failures", "testcase/failure"),
                            ("errors", "testcase/error"), ("skipped", "testcase/skipped")):  # fmt: skip
        assert int(element.get(attribute)) == sum(len(suite.findall(path)) for suite in suites)
