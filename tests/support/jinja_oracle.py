"""Jinja2 set up as Hugging Face transformers sets it up for chat templates, and `penstock render` beside it."""
import datetime
import json
import subprocess

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %}…{% endgeneration %}: a block with a scope of its own."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def render_reference(template, case):
    """{"text": …} or {"error": …} of a compiled template."""
    variables = {name: value for name, value in case.items() if name != "kwargs"}
    variables.update(case.get("kwargs", {}))
    try:
        return {"text": template.render(**variables)}
    except Exception as error:  # whatever it is, the template does not render
        return {"error": f"{type(error).__name__}: {error}"}


def render_ours(program, path, cases, *more):
    """One result a case; one {"refused": …} for all when the template does not load."""
    lines = "".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases)
    run = subprocess.run([program, "render", *(["--template", path] if path else []), *more], input=lines.encode(), capture_output=True, timeout=120)
    if run.returncode:
        return [{"refused": run.stderr.decode().strip(), "status": run.returncode}] * len(cases)
    return [json.loads(line) for line in run.stdout.decode().splitlines()]


def differ(reference, ours):
    """Texts must be equal; where the reference has an error we must have one, in any words."""
    if "error" in reference:
        return "text" in ours
    return ours.get("text") != reference["text"]
