"""Holds recorded calls of ARC zonal shift against AWS's own model, as botocore has it.

Reads one JSON object a line: method, path, query, status, error (the header with the
code of a refusal) and answer (the JSON as sent). Prints one line for each thing that the
model does not know or allow, and at the end how many calls it has read.
"""

import importlib
import json
import sys
import urllib.parse

try:
    import botocore

    PACKAGE = "botocore"
except ImportError:  # version 2 of the aws command brings its own copy
    PACKAGE = "awscli.botocore"


def module(name):
    return importlib.import_module(PACKAGE + "." + name)


# "Common errors" of the API reference.
COMMON_ERRORS = {"MissingAuthenticationToken", "InvalidClientTokenId", "SignatureDoesNotMatch", "RequestExpired"}


class Checker:
    def __init__(self):
        self.model = module("session").get_session().get_service_model("arc-zonal-shift")
        protocol = self.model.metadata["protocol"]
        self.parser = module("parsers").create_parser(protocol)
        self.serializer = module("serialize").create_serializer(protocol, include_validation=True)
        self.validator = module("validate").ParamValidator()

    def call(self, exchange):
        for name in self.model.operation_names:
            operation = self.model.operation_model(name)
            if (operation.http["method"], operation.http["requestUri"]) == (exchange["method"], exchange["path"]):
                break
        else:
            yield "%s %s: not an operation" % (exchange["method"], exchange["path"])
            return
        if exchange["status"] != operation.http["responseCode"]:
            yield from self.refusal(operation, exchange)
            return
        yield from self.request(operation, exchange["query"])
        yield from self.answer(operation, exchange["answer"])

    # Requests that are granted must be those that botocore would send.
    def request(self, operation, query):
        members = {m.serialization["name"]: (n, m) for n, m in operation.input_shape.members.items()}
        sent, params = dict(urllib.parse.parse_qsl(query, keep_blank_values=True)), {}
        for key, value in sent.items():
            if key not in members:
                yield "%s: the model has no parameter %s" % (operation.name, key)
                return
            name, shape = members[key]
            params[name] = int(value) if shape.type_name == "integer" and value.isdigit() else value
            if getattr(shape, "enum", None) and value not in shape.enum:
                yield "%s.%s: the model has no value %r" % (operation.name, key, value)
        report = self.validator.validate(params, operation.input_shape)
        if report.has_errors():
            yield "%s: request: %s" % (operation.name, report.generate_report())
            return
        again = {k: str(v) for k, v in self.serializer.serialize_to_request(params, operation)["query_string"].items()}
        if again != sent:
            yield "%s: botocore would send %s, not %s" % (operation.name, again, sent)

    def answer(self, operation, text):
        complaints = []
        self.walk(operation.output_shape, json.loads(text), operation.name, complaints)
        yield from complaints
        parsed = self.parser.parse({"status_code": 200, "headers": {}, "body": text.encode()}, operation.output_shape)
        parsed.pop("ResponseMetadata", None)
        report = self.validator.validate(parsed, operation.output_shape)
        if report.has_errors():
            yield "%s: answer: %s" % (operation.name, report.generate_report())

    def walk(self, shape, value, path, complaints):
        if shape.type_name == "structure":
            for name, sub in value.items():
                if name not in shape.members:
                    complaints.append("%s: the model has no member %s" % (path, name))
                    continue
                self.walk(shape.members[name], sub, path + "." + name, complaints)
            for name in shape.required_members:
                if name not in value:
                    complaints.append("%s: member %s is missing" % (path, name))
        elif shape.type_name == "list":
            for sub in value:
                self.walk(shape.member, sub, path + "[]", complaints)
        elif shape.type_name == "timestamp":
            if not isinstance(value, (int, float)):
                complaints.append("%s: %r is no time in seconds" % (path, value))
        elif getattr(shape, "enum", None) and value not in shape.enum:
            complaints.append("%s: the model has no value %r" % (path, value))

    def refusal(self, operation, exchange):
        code, body = exchange["error"], json.loads(exchange["answer"])
        if not code or not body.get("message"):
            yield "%s: a refusal without code or message: %s" % (operation.name, exchange["answer"])
        for shape in operation.error_shapes:
            if shape.name == code:
                if shape.metadata["error"]["httpStatusCode"] != exchange["status"]:
                    yield "%s: %s with status %s" % (operation.name, code, exchange["status"])
                missing = [m for m in shape.required_members if m not in body]
                if missing:
                    yield "%s: %s without %s" % (operation.name, code, missing)
                return
        if code not in COMMON_ERRORS:
            yield "%s: the model has no error %s" % (operation.name, code)


def main():
    checker, calls = Checker(), 0
    for line in sys.stdin:
        for complaint in checker.call(json.loads(line)):
            print(complaint)
        calls += 1
    print("calls: %d" % calls)


main()
