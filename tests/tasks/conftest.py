"""Side tasks in Python that need Hugging Face's libraries: run by the frameworks' Python (make test-frameworks)."""

import pytest
import tiny


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return (folder, *tiny.save_model(folder))


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    return (folder, *tiny.save_model(folder, "gpt2"))
