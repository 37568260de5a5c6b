"""Values that are computed from a request are computed once for each request."""

from dataclasses import replace

from backend.engine.job import RequestSummary
from backend.engine.stored_requests import RequestMemo
from tests.wan_ui.builders import a_job, a_request


def test_a_value_is_computed_again_only_for_another_request():
    stored = {"job-1": a_job()}
    read: list[str] = []

    def read_job(job_id: str):
        read.append(job_id)
        return stored[job_id]

    memo, listed = RequestMemo(read_job), a_job()
    assert [memo.value(listed, "seed", lambda request: request.seed) for _ in range(3)] == [7] * 3 and len(read) == 1
    assert memo.value(listed, "steps", lambda request: request.steps) == listed.request.steps and len(read) == 2
    request = a_request(seed=8)
    stored["job-1"] = revised = replace(listed, request=request, summary=RequestSummary.from_request(request))
    assert [memo.value(revised, "seed", lambda request: request.seed) for _ in range(2)] == [8, 8] and len(read) == 3


def test_a_request_that_was_revised_after_the_list_was_read_is_not_taken_for_the_old_one():
    old, request = a_job(), a_request(seed=8)
    new = replace(old, request=request, summary=RequestSummary.from_request(request))
    stored = [old, new]
    memo = RequestMemo(lambda job_id: stored.pop())
    assert [memo.value(old, "seed", lambda request: request.seed) for _ in range(2)] == [8, 7]
