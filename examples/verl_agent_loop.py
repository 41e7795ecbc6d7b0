"""An agent loop for verl: a Closeout agent plays the rollouts of a training, with verl's engine as its model.

    # agent_loops.yaml, for actor_rollout_ref.rollout.agent.agent_loop_config_path
    - name: closeout
      _target_: verl_agent_loop.CloseoutAgentLoop  # with examples/ in PYTHONPATH
      make_agent: my_package.agents:make_agent

`make_agent(client)` returns your agent with that client as its model: `Agent(client, [look_up])`. Rows of the data set
choose the loop with `agent_name: closeout`. Each rollout is one sequence of the tokens that were sampled, and a run in
the home, where `closeout view` shows it. The agent's instructions replace the system message. The reward is verl's.
After a rollback or an eviction the conversation is written anew: what follows is another sequence, and not trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from closeout.assembly.named import named_object
from closeout.errors import BadRequest
from closeout.evaluate.token_samples import token_samples
from closeout.messages import ModelReply, ModelRequest, ReplyTokens, Usage
from closeout.models.token_in import TokenClient

__all__ = ["CloseoutAgentLoop"]


class EngineClient(TokenClient):
    """Asks verl's engine.

    Attributes:
        first: The ids of the first prompt and its reply.
        start: Where the reply begins in them.
    """

    def __init__(self, loop: AgentLoopBase, sampling_params: Mapping[str, Any], run_id: str) -> None:
        super().__init__("policy", "http://verl.invalid/v1", template=loop.tokenizer.chat_template)
        self._loop, self._sampling, self._run_id = loop, dict(sampling_params), run_id
        self.first: list[int] = []
        self.start = 0
        self._full = False

    async def tokenize(self, text: str) -> list[int]:
        return list(self._loop.tokenizer.encode(text, add_special_tokens=False))

    async def generate(self, prompt: Sequence[int], request: ModelRequest, **_: Any) -> ModelReply:
        room = self._loop.rollout_config.prompt_length + self._loop.rollout_config.response_length - len(prompt)
        if self._full or room <= 0:
            raise BadRequest("The rollout has used response_length.")
        found = await self._loop.server_manager.generate(
            request_id=self._run_id, prompt_ids=list(prompt), sampling_params={**self._sampling, "max_tokens": room}
        )
        ids = list(found.token_ids)
        if not self.first:
            self.first, self.start = [*prompt, *ids], len(prompt)
        ended = bool(ids) and ids[-1] == self._loop.tokenizer.eos_token_id
        self._full = not ended and len(ids) >= room
        text = self._loop.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=False)
        tokens = ReplyTokens(ids=tuple(ids), logprobs=tuple(found.log_probs or ()))
        usage = Usage(len(prompt), len(ids), requests=1)
        return ModelReply(text, finish_reason="stop" if ended else "length", usage=usage, tokens=tokens)


@register("closeout")
class CloseoutAgentLoop(AgentLoopBase):
    def __init__(self, *args: Any, make_agent: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._make_agent = named_object(make_agent)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        *history, asked = (dict(message) for message in kwargs["raw_prompt"] if message["role"] != "system")
        run_id = f"verl.{uuid4().hex}"
        client = EngineClient(self, sampling_params, run_id)
        async with self._make_agent(client) as agent:
            result = await agent.run(asked["content"], run_id=run_id, history=history)
        learned = token_samples(result.read_rows())  # none if every reply was rolled back
        sample = learned[0] if learned else {"input_ids": client.first, "loss_mask": [0] * len(client.first)}
        reply = slice(client.start, client.start + self.rollout_config.response_length)
        return AgentLoopOutput(
            prompt_ids=sample["input_ids"][: client.start],
            response_ids=sample["input_ids"][reply],
            response_mask=sample["loss_mask"][reply],
            response_logprobs=sample["logprobs"][reply] if "logprobs" in sample else None,
            num_turns=2 * result.turns,
            metrics=AgentLoopMetrics(),
            extra_fields={"turn_scores": [], "tool_rewards": [], "answer": result.answer, "run_id": run_id},
        )
