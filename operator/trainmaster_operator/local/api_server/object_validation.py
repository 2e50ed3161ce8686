"""What an API server refuses in the form of an object: names, labels, owners, the fields of a Pod that cannot change.

This is no schema: it checks only what the operator could get wrong. Messages have the API server's form `field: value:
why`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from trainmaster_operator.cluster.objects import finalizers, owners
from trainmaster_operator.cluster.port import CONFIG_MAP, EVENT, KINDS, POD, REVISION, SECRET, SERVICE, Invalid, Object

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_PLAIN_FINALIZERS = ("foregroundDeletion", "orphan", "kubernetes")
_MUTABLE_POD_SPEC = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")


def check_create(kind: str, obj: Object) -> None:
    """Raise Invalid with every problem of a new object."""
    _refuse(kind, obj, [*_metadata(kind, obj), *_content(kind, obj)])


def check_update(kind: str, old: Object, new: Object) -> None:
    """Raise Invalid with every problem of a replacement."""
    problems = [*_metadata(kind, new), *_content(kind, new)]
    if old["metadata"].get("deletionTimestamp"):
        added = [f for f in finalizers(new) if f not in finalizers(old)]
        if added:
            problems.append(
                f"metadata.finalizers: {added}: no new finalizers can be added if the object is being deleted"
            )
    if kind == POD and _fixed_pod_spec(old) != _fixed_pod_spec(new):
        problems.append("spec: Forbidden: pod updates may not change fields other than images and tolerations")
    if kind == REVISION and old.get("data") != new.get("data"):
        problems.append("data: field is immutable")
    _refuse(kind, new, problems)


def version_number(version: str) -> int:
    """Return a resourceVersion as a number. Raise Invalid if it is none."""
    if not version.isdigit():
        raise Invalid(f"resourceVersion: {version!r}: must be a decimal number")
    return int(version)


def same_object(kind: str, old: Object, new: Object) -> Object:
    """Return `new`. Raise Invalid if a patch or an apply would make it another object."""
    for field in ("name", "namespace", "uid"):
        if new["metadata"].get(field) != old["metadata"][field]:
            raise Invalid(
                f'{kind} "{old["metadata"]["name"]}" is invalid: metadata.{field}: '
                f"{new['metadata'].get(field)!r}: field is immutable"
            )
    return new


def _refuse(kind: str, obj: Object, problems: Iterable[str]) -> None:
    text = "; ".join(problems)
    if text:
        raise Invalid(f'{kind} "{(obj.get("metadata") or {}).get("name", "")}" is invalid: {text}')


def _metadata(kind: str, obj: Object) -> Iterator[str]:
    if obj.get("kind") != kind or obj.get("apiVersion") != KINDS[kind].api_version:
        yield f"apiVersion, kind: {obj.get('apiVersion')}, {obj.get('kind')}: must be {KINDS[kind].api_version}, {kind}"
    meta = obj.get("metadata")
    if not isinstance(meta, dict):
        yield "metadata: Required value"
        return
    yield from _label("metadata.namespace", meta.get("namespace", ""))
    if kind == SERVICE:
        yield from _label("metadata.name", meta.get("name", ""), _LABEL_1035, "a DNS-1035 label")
    else:
        yield from _subdomain("metadata.name", meta.get("name", ""))
    for key, value in (meta.get("labels") or {}).items():
        yield from _qualified("metadata.labels", key)
        if not isinstance(value, str) or len(value) > 63 or (value and not _fits(_QUALIFIED, value)):
            yield f"metadata.labels.{key}: {value!r}: must be at most 63 letters, digits, '-', '_' and '.'"
    for key, value in (meta.get("annotations") or {}).items():
        yield from _qualified("metadata.annotations", key)
        if not isinstance(value, str):
            yield f"metadata.annotations.{key}: {value!r}: must be a string"
    for finalizer in finalizers(obj):
        yield from _qualified("metadata.finalizers", finalizer)
        if "/" not in finalizer and finalizer not in _PLAIN_FINALIZERS:
            yield f"metadata.finalizers: {finalizer!r}: must be qualified by a domain, as in example.com/name"
    for index, owner in enumerate(owners(obj)):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield f"metadata.ownerReferences[{index}].{field}: must not be empty"
    if sum(owner.get("controller") is True for owner in owners(obj)) > 1:
        yield "metadata.ownerReferences: only one reference can have Controller set to true"


def _content(kind: str, obj: Object) -> Iterator[str]:
    if kind == POD:
        yield from _pod(obj)
    if kind == EVENT:
        involved = (obj.get("involvedObject") or {}).get("namespace")
        if involved != (obj.get("metadata") or {}).get("namespace"):
            yield f"involvedObject.namespace: {involved!r}: does not match event.namespace"
    if kind in (CONFIG_MAP, SECRET):
        yield from _data(kind, obj.get("data") or {})


def _data(kind: str, data: object) -> Iterator[str]:
    if not isinstance(data, dict):
        yield f"data: {type(data).__name__}: must be an object"
        return
    for key, value in data.items():
        if not _DATA_KEY.fullmatch(key) or len(key) > 253:
            yield f"data: {key!r}: a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
        if not isinstance(value, str):
            yield f"data.{key}: must be a string"
        elif kind == SECRET:
            try:
                binascii.a2b_base64(value, strict_mode=True)
            except ValueError as error:
                yield f"data.{key}: illegal base64 data: {error}"


def _pod(pod: Object) -> Iterator[str]:
    spec = pod.get("spec") or {}
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            yield from _label(f"spec.{field}", spec[field])
    containers = spec.get("containers") or []
    if not containers:
        yield "spec.containers: Required value"
    names: set[str] = set()
    for index, container in enumerate(containers):
        path = f"spec.containers[{index}]"
        yield from _label(f"{path}.name", container.get("name", ""))
        if container.get("name") in names:
            yield f"{path}.name: {container.get('name')!r}: Duplicate value"
        names.add(container.get("name", ""))
        for at, variable in enumerate(container.get("env") or []):
            if not variable.get("name"):
                yield f"{path}.env[{at}].name: Required value"
            if not isinstance(variable.get("value", ""), str):
                yield f"{path}.env[{at}].value: {variable['value']!r}: must be a string"


def _label(
    path: str, value: object, pattern: re.Pattern[str] = _LABEL, what: str = "a DNS-1123 label"
) -> Iterator[str]:
    if not isinstance(value, str) or not _fits(pattern, value):
        yield f"{path}: {value!r}: must be {what}: lower case letters, digits and '-'"
    elif len(value) > 63:
        yield f"{path}: {value!r}: must be no more than 63 characters"


def _subdomain(path: str, value: object) -> Iterator[str]:
    if not isinstance(value, str) or not _fits(_SUBDOMAIN, value):
        yield f"{path}: {value!r}: must be a lower case RFC 1123 subdomain: letters, digits, '-' and '.'"
    elif len(value) > 253:
        yield f"{path}: {value!r}: must be no more than 253 characters"


def _qualified(path: str, key: str) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    if slash:
        yield from _subdomain(f"{path}.{key}", prefix)
    if len(name) > 63 or not _fits(_QUALIFIED, name):
        yield f"{path}: {key!r}: name part must be at most 63 letters, digits, '-', '_' and '.'"


@lru_cache(maxsize=4096)
def _fits(pattern: re.Pattern[str], text: str) -> bool:
    """Remembered, since the names of one object are checked again at each write: a leader renews its Lease every two
    seconds."""
    return pattern.fullmatch(text) is not None


def _fixed_pod_spec(pod: Object) -> Object:
    spec = {k: v for k, v in (pod.get("spec") or {}).items() if k not in _MUTABLE_POD_SPEC}
    for containers in ("containers", "initContainers"):
        if containers in spec:
            spec[containers] = [{k: v for k, v in c.items() if k != "image"} for c in spec[containers]]
    return spec
