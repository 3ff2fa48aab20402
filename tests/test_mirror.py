"""Tests mirror the package: a module has a `test_<module>`, or is listed here with its tests."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "aiokprod"

ELSEWHERE = {
    "_log_fields": "test_logging.py",
    "_client/bulk_result": "client/test_send_many.py scenarios/test_bulk_calls.py",
    "_client/cluster_client/broker_access": "client/test_cluster_requests.py",
    "_client/cluster_client/requests": "client/test_cluster_requests.py",
    "_client/check/servers": "client/check/test_checker.py",
    "_client/check/topics": "client/check/test_checker.py",
    "_client/fast_path": "test_layers.py client/test_hooks_on_both_paths.py",
    "_client/lifecycle": "scenarios/test_process_and_event_loop.py scenarios/test_cancellation.py",
    "_client/late_executor": "client/test_event_loops.py foundation/test_blocking.py",
    "_client/record_hooks": "client/test_hooks_on_both_paths.py client/test_misbehaving_hooks.py",
    "_client/record_submitter": "client/test_submit_under_timeout.py client/test_on_delivery.py",
    "_client/slow_path": "client/test_hooks_on_both_paths.py scenarios/test_blocking_calls.py",
    "_client/metrics": "scenarios/test_metrics.py",
    "_client/status": "client/test_delivery_watch.py client/test_explanation.py",
    "_client/transactions": "transactions/test_api.py",
    "_client/validation": "foundation/test_arguments.py scenarios/test_invalid_arguments.py",
    "_client/warm_up": "scenarios/test_api_edge_cases.py",
    "__main__": "cli/test_commands.py",
    "_cli/inputs": "cli/test_produce.py",
    "_cli/outcomes": "cli/test_produce.py",
    "_cli/perf": "cli/test_commands.py",
    "_compat/aiokafka_batch": "compat/test_aiokafka.py",
    "_compat/aiokafka_client": "compat/test_aiokafka.py",
    "_compat/confluent_errors": "compat/test_confluent.py",
    "_compat/bootstrap_watch": "compat/test_aiokafka.py",
    "_config/fields": "foundation/test_config.py",
    "_config/profiles": "foundation/test_topic_profiles.py",
    "_config/security": "foundation/test_config.py security/test_edges.py",
    "_core/hooks": "client/test_hooks_on_both_paths.py",
    "_core/serialization": "client/test_serializers_on_both_paths.py",
    "_engine/buffer/topic_settings": "engine/buffer/test_topic_profiles.py",
    "_engine/metadata/schedule": "engine/metadata/test_cache.py",
    "_engine/ports": "net/test_client.py",
    "_engine/sender/batch_completion": "engine/sender/test_sender.py",
    "_engine/sender/batch_errors": "engine/sender/test_retry_policy.py",
    "_histogram": "foundation/test_observer.py",
    "_json": "foundation/test_json_serializer.py",
    "_net/channel_states": "net/test_channel.py test_docs.py",
    "_net/connection_factory": "net/test_client.py",
    "_net/dial_tasks": "net/test_client.py net/test_tls_transport.py",
    "_net/sasl/authenticator": "security/test_sasl.py",
    "_net/sasl/factory": "foundation/test_mechanisms.py security/test_sasl.py",
    "_net/sasl/oauthbearer": "security/test_sasl.py",
    "_net/sasl/plain": "security/test_sasl.py",
    "_net/sasl/scram": "security/test_sasl.py",
    "_security/http_exchange": "security/test_tokens.py serdes/test_registry.py",
    "_security/jwt_bearer": "security/test_tokens.py",
    "_security/msk_iam": "security/test_tokens.py",
    "_security/oidc": "security/test_tokens.py",
    "_security/secret": "security/test_edges.py security/test_sasl.py",
    "_security/token_endpoint": "security/test_tokens.py",
    "_security/token_provider": "security/test_tokens.py",
    "_version": "test_exports.py",
    "_wire/decoders": "wire/test_decoders_and_encoders.py",
    "_wire/encode_plan": "wire/test_messages.py wire/test_golden.py",
    "_wire/encoders": "wire/test_decoders_and_encoders.py",
    "_wire/message": "wire/test_messages.py",
    "observe/_otel_context": "observe/test_otel.py",
    "observe/_prometheus_protobuf": "observe/test_prometheus.py",
    "plugins": "client/test_hooks_on_both_paths.py",
    "producer": "scenarios/test_api_edge_cases.py scenarios/test_blocking_calls.py",
    "security": "test_exports.py",
    "serdes/_extras": "serdes/test_models.py",
    "spark/batch_handoff": "spark/test_worker_loop.py",
    "spark/context": "spark/test_writer.py",
    "spark/failures": "spark/test_commit_messages.py",
    "spark/foreach_batch": "spark/test_registration.py",
    "spark/job_report": "spark/test_commit_messages.py",
    "spark/jvm_socket_watch": "spark/test_worker_loop.py",
    "spark/rows": "spark/test_writer.py",
    "spark/source": "spark/test_writer.py",
    "spark/task_sender": "spark/test_table_handoff.py spark/test_writer.py",
    "spark/tasks": "spark/test_writer.py",
    "spark/traceback_redaction": "spark/test_options.py",
    "spark/transactional_task": "spark/test_transactions.py",
    "spark/verification": "spark/test_transactions.py",
    "testing/kafka_container": "integration/conftest.py",
    "testing/kafka_node": "testing/test_kafka_cluster.py testing/test_reaper.py",
    "testing/kafka_zookeeper": "integration/test_brokers.py",
    "testing/mock_cluster": "test_readme.py",
    "testing/pipes": "testing/test_memory.py",
    "testing/pytest_plugin": "integration/conftest.py",
    "testing/transports": "testing/test_memory.py net/test_transports.py",
}
"""Map of a module, without suffix, to its tests, where another division is more useful."""

OTHER_PLACES = ("foundation", "security", "spark/integration")

GROUPS = {
    "_wire/messages": "wire/test_messages.py wire/test_message_schema.py wire/test_golden.py",
    "testing/fake_cluster": "testing/test_fake_cluster.py",
}
"""Packages whose modules are tested together."""


def modules() -> list[str]:
    """Return the modules with code, relative to the package and without suffix."""
    found = []
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx")]):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if path.stem != "__init__" and not module.startswith(tuple(GROUPS)):
            found.append(module)
    return found


def has_test(module: str) -> bool:
    """Return True if there is a `test_<module>` in the folder of its package. The tests of public
    modules are in `foundation`, those of TLS and SASL in `security`."""
    *folders, name = (part.lstrip("_") for part in module.split("/"))
    pattern = f"test_{name}.py"
    places = ["/".join(folders[:depth]) for depth in range(len(folders), 0, -1)]
    return any((TESTS / place / pattern).exists() for place in [*places, *OTHER_PLACES])


@pytest.mark.parametrize("module", modules())
def test_module_has_tests_of_its_name_or_is_listed(module: str) -> None:
    assert has_test(module) != (module in ELSEWHERE), (
        "write tests/…/test_<module>.py, or name the tests of the module in ELSEWHERE"
    )


@pytest.mark.parametrize("listed", [*ELSEWHERE.items(), *GROUPS.items()], ids=lambda one: one[0])
def test_listed_modules_and_tests_exist(listed: tuple[str, str]) -> None:
    module, tests = listed
    found = [PACKAGE / module, *(PACKAGE / f"{module}{end}" for end in (".py", ".pyx"))]
    assert any(path.exists() for path in found)
    assert [test for test in tests.split() if not (TESTS / test).exists()] == []
