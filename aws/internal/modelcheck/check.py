"""Holds recorded calls against AWS's own model of its APIs, as botocore has it.

Reads one JSON object a line: service, request (the form as sent), status and
answer (the XML as sent). For SQS and Systems Manager request and answer are JSON, and
the action is beside them. Prints one line for each thing that the model does not
know or allow, and at the end how many calls it has read.
"""

import importlib
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

try:
    import botocore

    PACKAGE = "botocore"
except ImportError:  # version 2 of the aws command brings its own copy
    PACKAGE = "awscli.botocore"


def module(name):
    return importlib.import_module(PACKAGE + "." + name)


MODELS = {"ec2": "ec2", "elasticloadbalancing": "elbv2", "sts": "sts"}
# What is sent beside an operation's own members.
ENVELOPE = {"requestId", "ResponseMetadata"}
# EC2's model has no errors; the query protocol's are in the operation's list.
# "Common errors" of the ELBv2 API reference:
COMMON_ERRORS = {"AccessDenied", "InvalidAction", "InvalidClientTokenId", "MissingParameter", "RequestExpired", "SignatureDoesNotMatch",
                 "UnknownParameter", "InvalidParameterValue", "ValidationError", "InternalFailure", "ServiceUnavailable", "Throttling"}


# AWS has new types every month, and so has every new version of the model.
INSTANCE_TYPE = re.compile(r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")


class Checker:
    def __init__(self, service):
        session = module("session").get_session()
        self.model = session.get_service_model(MODELS[service])
        self.protocol = self.model.metadata["protocol"]
        self.parser = module("parsers").create_parser(self.protocol)
        self.serializer = module("serialize").create_serializer(self.protocol, include_validation=True)
        self.validator = module("validate").ParamValidator()

    def call(self, exchange):
        form = dict(urllib.parse.parse_qsl(exchange["request"], keep_blank_values=True))
        name = form.pop("Action")
        if form.pop("Version") != self.model.api_version:
            yield "%s: another version than %s" % (name, self.model.api_version)
        status, answer = exchange["status"], exchange["answer"].encode()
        if status == 200:
            if name not in self.model.operation_names:
                yield "%s: not an operation" % name
                return
            operation = self.model.operation_model(name)
            yield from self.request(operation, form)
            yield from self.answer(operation, answer)
        else:
            yield from self.refusal(name, status, answer)

    # Requests that are granted must be those that botocore would send.
    def request(self, operation, form):
        shape = operation.input_shape
        tree = {}
        for key, value in form.items():
            at = tree
            for part in key.split("."):
                at = at.setdefault(part, {})
            at[""] = value
        complaints = []
        params = self.decode(shape, tree, operation.name, complaints)
        yield from complaints
        report = self.validator.validate(params, shape)
        if report.has_errors():
            yield "%s: request: %s" % (operation.name, report.generate_report())
            return
        again = self.serializer.serialize_to_request(params, operation)["body"]
        again = {k: str(v) for k, v in again.items() if k not in ("Action", "Version")}
        if again != form:
            yield "%s: botocore would send %s, not %s" % (operation.name, sorted(set(again.items()) - set(form.items())),
                                                          sorted(set(form.items()) - set(again.items())))

    def query_name(self, member_name, member):
        if self.protocol != "ec2":
            return member.serialization.get("name", member_name)
        if "queryName" in member.serialization:
            return member.serialization["queryName"]
        name = member.serialization.get("name", member_name)
        return name[0].upper() + name[1:]

    def decode(self, shape, tree, path, complaints):
        if shape.type_name == "structure":
            members = {self.query_name(n, m): (n, m) for n, m in shape.members.items()}
            out = {}
            for key, sub in tree.items():
                if key not in members:
                    complaints.append("%s: the model has no parameter %s" % (path, key))
                    continue
                name, member = members[key]
                out[name] = self.decode(member, sub, path + "." + key, complaints)
            return out
        if shape.type_name == "list":
            if self.protocol != "ec2" and not shape.serialization.get("flattened"):
                tree = tree.get("member", {})
            if not all(k.isdigit() for k in tree):
                complaints.append("%s: not a list: %s" % (path, sorted(tree)))
                return []
            return [self.decode(shape.member, tree[k], "%s.%s" % (path, k), complaints) for k in sorted(tree, key=int)]
        return self.scalar(shape, tree.get(""), path, complaints)

    def scalar(self, shape, text, path, complaints):
        text = text or ""
        try:
            if shape.type_name in ("integer", "long"):
                return int(text)
            if shape.type_name in ("double", "float"):
                return float(text)
            if shape.type_name == "timestamp":
                return module("utils").parse_timestamp(text)
        except ValueError:
            complaints.append("%s: %r is no %s" % (path, text, shape.type_name))
            return text
        if shape.type_name == "boolean":
            if text not in ("true", "false"):
                complaints.append("%s: %r is no boolean" % (path, text))
            return text == "true"
        if shape.name == "InstanceType":
            if not INSTANCE_TYPE.match(text):
                complaints.append("%s: %r is no instance type" % (path, text))
        elif getattr(shape, "enum", None) and text not in shape.enum:
            complaints.append("%s: the model has no value %r" % (path, text))
        return text

    def answer(self, operation, body):
        root = ElementTree.fromstring(body)
        namespace, _, tag = root.tag[1:].partition("}")
        if tag != operation.name + "Response":
            yield "%s: the answer is a %s" % (operation.name, tag)
        expected = self.model.metadata.get("xmlNamespace") or "http://%s.amazonaws.com/doc/%s" % (
            self.model.endpoint_prefix, self.model.api_version)
        if namespace.rstrip("/") != expected.rstrip("/"):
            yield "%s: namespace %s" % (operation.name, namespace)
        shape, at = operation.output_shape, root
        if shape is None:
            return  # such as the element return, which says true
        wrapper = shape.serialization.get("resultWrapper")
        if wrapper:
            at = next((e for e in root if local(e) == wrapper), None)
            if at is None:
                yield "%s: no %s" % (operation.name, wrapper)
                return
        complaints = []
        self.walk(shape, at, operation.name, complaints)
        yield from complaints
        parsed = self.parser.parse({"status_code": 200, "headers": {}, "body": body}, shape)
        parsed.pop("ResponseMetadata", None)
        report = self.validator.validate(parsed, shape)
        if report.has_errors():
            yield "%s: answer: %s" % (operation.name, report.generate_report())

    def walk(self, shape, element, path, complaints):
        if shape.type_name == "structure":
            members = {m.serialization.get("name", n): m for n, m in shape.members.items()}
            seen = set()
            for child in element:
                name = local(child)
                if name in ENVELOPE:
                    continue
                member = members.get(name)
                if member is None:
                    complaints.append("%s: the model has no member %s" % (path, name))
                    continue
                if name in seen:
                    complaints.append("%s: member %s twice" % (path, name))
                seen.add(name)
                self.walk(member, child, path + "." + name, complaints)
        elif shape.type_name == "list":
            item = shape.member.serialization.get("name", "member")
            for child in element:
                if local(child) != item:
                    complaints.append("%s: %s in a list of %s" % (path, local(child), item))
                self.walk(shape.member, child, path + "." + item, complaints)
        else:
            if len(element):
                complaints.append("%s: members in a %s" % (path, shape.type_name))
            self.scalar(shape, element.text, path, complaints)

    def refusal(self, name, status, body):
        parsed = self.parser.parse({"status_code": status, "headers": {}, "body": body}, None)
        code, message = parsed["Error"].get("Code"), parsed["Error"].get("Message")
        if not code or not message and code != "ParameterNotFound":
            yield "%s: a refusal without code or message: %s" % (name, body)
        if self.protocol == "ec2" or name not in self.model.operation_names:
            return
        for shape in self.model.operation_model(name).error_shapes:
            error = shape.metadata.get("error", {})
            if error.get("code") == code:
                if error.get("httpStatusCode") != status:
                    yield "%s: %s with status %s" % (name, code, status)
                return
        if code not in COMMON_ERRORS:
            yield "%s: the model has no error %s" % (name, code)


# SQS and Systems Manager are called in JSON. Older models describe the query protocol, with the same shapes.
# "Common errors" of the API references of SQS and Systems Manager, in the form of the JSON protocol:
COMMON_JSON_ERRORS = {"AccessDeniedException", "InvalidParameterValueException", "InvalidSignatureException", "MissingAuthenticationTokenException",
                      "MissingRequiredParameterException", "SerializationException", "ServiceUnavailable", "InternalFailure", "RequestThrottled",
                      "ThrottlingException", "UnknownOperationException", "UnrecognizedClientException", "RequestExpired", "ValidationException"}
PYTHON_TYPES = {"string": str, "integer": int, "long": int, "boolean": bool}


class JSONChecker:
    def __init__(self, service):
        self.model = module("session").get_session().get_service_model(service)
        self.validator = module("validate").ParamValidator()

    def call(self, exchange):
        name, status = exchange["action"], exchange["status"]
        if status != 200:
            yield from self.refusal(name, json.loads(exchange["answer"]))
            return
        if name not in self.model.operation_names:
            yield "%s: not an operation" % name
            return
        operation = self.model.operation_model(name)
        yield from self.document(operation.input_shape, json.loads(exchange["request"]), name + ": request")
        yield from self.document(operation.output_shape, json.loads(exchange["answer"]), name + ": answer")

    def document(self, shape, value, path):
        complaints = []
        self.walk(shape, value, path, complaints)
        yield from complaints
        report = self.validator.validate(value, shape)
        if report.has_errors():
            yield "%s: %s" % (path, report.generate_report())

    def walk(self, shape, value, path, complaints):
        if shape.type_name == "structure" and isinstance(value, dict):
            for key, sub in value.items():
                if key not in shape.members:
                    complaints.append("%s: the model has no member %s" % (path, key))
                    continue
                self.walk(shape.members[key], sub, path + "." + key, complaints)
        elif shape.type_name == "list" and isinstance(value, list):
            for sub in value:
                self.walk(shape.member, sub, path, complaints)
        elif shape.type_name in PYTHON_TYPES:
            if type(value) is not PYTHON_TYPES[shape.type_name]:
                complaints.append("%s: %r is no %s" % (path, value, shape.type_name))
        else:
            complaints.append("%s: %r is no %s" % (path, value, shape.type_name))

    def refusal(self, name, answer):
        code, message = answer.get("__type", "").rpartition("#")[2], answer.get("message")
        if not code or not message and code != "ParameterNotFound":
            yield "%s: a refusal without code or message: %s" % (name, answer)
        if name not in self.model.operation_names or code in COMMON_JSON_ERRORS:
            return
        if code not in {shape.name for shape in self.model.operation_model(name).error_shapes}:
            yield "%s: the model has no error %s" % (name, code)


def local(element):
    return element.tag.rpartition("}")[2]


def main():
    checkers, calls = {}, 0
    for line in sys.stdin:
        exchange = json.loads(line)
        service = exchange["service"]
        if service not in checkers:
            checkers[service] = JSONChecker(service) if service in ("sqs", "ssm") else Checker(service)
        for complaint in checkers[service].call(exchange):
            print(complaint)
        calls += 1
    print("calls: %d" % calls)


main()
