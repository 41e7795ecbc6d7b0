"""From the arguments of an Agent and its settings to the plan of its runs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from closeout.answers.citations import with_quotes_checked
from closeout.answers.contracts import Text
from closeout.answers.formatter import OutputFormatter, extracted_by
from closeout.answers.reading import AnswerContract
from closeout.answers.typed import contract_of
from closeout.answers.user_checks import read_checks
from closeout.assembly.checks import (
    check_callable,
    check_flow,
    check_home,
    check_instructions,
    check_list,
    check_listeners,
    check_middleware,
    check_part,
    check_strategy,
    check_text,
)
from closeout.assembly.parts import Parts, without_parts
from closeout.assembly.toolset import check_deps_types, check_sub_agents, configured_sub_agents, with_settings
from closeout.compat import check_methods
from closeout.compat.tool_executor import ToolExecutor
from closeout.compat.user_generator import own_generator
from closeout.config import Config, LLMSettings, SubAgentSettings, home_folder, load_config
from closeout.dialects.prompts import examples_slots, program_slots
from closeout.dialects.protocol import Dialect, get_dialect, serves
from closeout.errors import ConfigError, UsageError
from closeout.fleet.announcing import Webhook
from closeout.homes import Home, as_home
from closeout.journal.readonly import open_to_read
from closeout.journal.scratch import scratch_home
from closeout.journal.store import Store, open_store
from closeout.messages import ToolSpec
from closeout.models.connect import connect
from closeout.models.local.embedded import LocalClient
from closeout.parsing.forms import check_forms
from closeout.results.encoding import check_encoding
from closeout.run.gate import RequestGate
from closeout.run.handoff import Handoff, as_handoff
from closeout.run.limits import Limits
from closeout.run.middleware.background import has_background, wait_tool
from closeout.run.plan import AgentPlan, check_on_change
from closeout.run.programs import program_tool
from closeout.run.strategy import Strategy
from closeout.run.subagents import PageModel, as_tool, check_flow_names, read_result_tool, sub_agent_tool
from closeout.spec import AgentSpec
from closeout.strategies.small_model import SmallModel
from closeout.tools.approval_rules import ApprovalRule, read_rules
from closeout.tools.builtin.documents import document_tools
from closeout.tools.builtin.program_sandbox import require_sandbox, sandbox_installed
from closeout.tools.foreign import tool_manager
from closeout.tools.manager import AnyTool, ToolManager
from closeout.tools.mcp.mcp_config import read_servers
from closeout.tools.secrets import Secret, Secrets
from closeout.tools.skills import READ_SKILL
from closeout.tools.tool import ModelTool, Tool

__all__ = ["Assembler"]

# What an agent of the settings does not take over from the agent that they belong to: it is that agent's alone, or
# governs what it starts anyway.
OWN_ALONE: dict[str, Any] = {
    "handoffs": (),
    "skills": (),
    "flow": None,
    "middleware": (),
    "version": "",
    "context": None,
    "output_parser": None,
    "on_change": "keep",
    "telemetry": None,
    "listeners": (),
    "webhook": None,
}

logger = logging.getLogger(__name__)


class Assembler:
    """Checks the arguments of an Agent, makes its tools, and settles its plan.

    The arguments are those of `Agent`, in which `config` is complete. The methods that return another Assembler raise
    what `Agent.with_tools`, `with_dialect` and so on state.
    """

    def __init__(self, config: Config, spec: AgentSpec, *, shares_policies: bool = False) -> None:
        self.config = config
        parts = Parts(config.agent, "agent")
        # The policies of the settings may name tools of any of the agents in them.
        self._shares_policies = shares_policies or bool(config.agent.sub_agents)
        self._base_url = spec.base_url
        self._api_key = spec.api_key
        is_named = spec.dialect is None or isinstance(spec.dialect, str)
        self._dialect: str | Dialect = config.dialect if is_named or spec.dialect is None else spec.dialect
        self.spec = spec = self._settled(spec, parts)
        self.client = connect(spec.model, spec.base_url, spec.api_key, config.llm, later=True)
        self._check_dialect()
        self._runs_programs = (
            spec.code_mode or config.agent.code_mode or getattr(self._dialect, "name", self._dialect) == "code"
        )
        handoffs = [*parts.handoffs(), *map(as_handoff, check_list("handoffs", spec.handoffs, "[billing]"))]
        if (handoffs or config.agent.handoffs) and getattr(self._dialect, "name", self._dialect) == "code":
            raise ConfigError("The dialect code has no handoffs: a program cannot hand the conversation over.")
        self.manager = self._make_manager(spec.tools, spec.mcp_servers, (*parts.tools(), *handoffs))
        for part in (self.client, self.manager, spec.output_formatter, spec.telemetry):
            check_methods(type(part))
        for kind in (spec.tool_executor, spec.answer_generator, spec.output_parser):
            check_methods(kind)
        self._prefers_programs = self._dialect == "auto" and self._adopt_programs()
        check_sub_agents(config.agent.sub_agents, self.manager)
        check_deps_types(spec.deps_type, self.manager.local_tools)
        self._plan: AgentPlan | None = None
        self._folder: Home | None = None  # what `home` resolved to on first use
        if (spec.secrets or spec.flow) and not self.manager.has_servers:  # those are known when a run begins
            self.plan().check_secrets()
            if not shares_policies:
                check_flow_names(self.plan())

    def _settled(self, spec: AgentSpec, parts: Parts) -> AgentSpec:
        """Return the spec with checked values, and those of the settings where it has none."""
        name, observe = spec.name, spec.format_observation
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise UsageError(f"The name of an agent must be a printable text, got {name!r:.80}.")
        if observe is not None and not callable(observe):
            raise UsageError(f"format_observation must be a function of a ToolOutput, got {observe!r:.80}.")
        flow, webhook = spec.flow, self.config.webhook
        instructions = parts.instructions() if spec.instructions is None else spec.instructions
        answer = parts.answer() if spec.answer is None else spec.answer
        contract = None if answer is None else contract_of(answer)
        executor = spec.tool_executor or parts.imported("tool_executor")
        generator = spec.answer_generator or parts.imported("answer_generator")
        return replace(
            spec,
            instructions=check_instructions(instructions)
            if callable(instructions)
            else check_text("instructions", instructions),
            deps_type=parts.imported("deps_type") if spec.deps_type is None else spec.deps_type,
            home=check_home(spec.home),
            output_formatter=check_part("output_formatter", spec.output_formatter or parts.made("output_formatter")),
            answer=contract,
            tool_executor=check_callable("tool_executor", "ToolExecutor", executor),
            answer_generator=check_callable("answer_generator", "AnswerGenerator", generator),
            output_parser=check_callable("output_parser", "CotAgentOutputParser", spec.output_parser),
            telemetry=check_part("telemetry", spec.telemetry),
            context=check_part("context", spec.context),
            forms=check_forms(check_list("forms", spec.forms, "[Form(…)]")),
            encodings=tuple(map(check_encoding, check_list("encodings", spec.encodings, "[Encoding(…)]"))),
            strategy=check_strategy(spec.strategy or parts.strategy()),
            check=with_quotes_checked(read_checks(spec.check) or parts.checks(), contract),
            skills=parts.skills(check_list("skills", spec.skills, '["skills"]')),
            listeners=(*parts.listeners(), *check_listeners(spec.listeners)),
            webhook=check_part("webhook", spec.webhook or (webhook and Webhook(**webhook.model_dump()))),
            version=check_text("version", spec.version),
            on_change=check_on_change(spec.on_change),
            middleware=check_middleware(spec.middleware),
            approved=read_rules(spec.approved or self.config.tools.approved),
            flow=check_flow((self.config.flow and self.config.flow.model_dump()) if flow is None else flow),
            secrets=spec.secrets if isinstance(spec.secrets, Secrets) else self._make_secrets(spec.secrets),
        )

    @property
    def name(self) -> str:
        """The name of the agent."""
        return self.spec.name

    def only(self, names: Iterable[str]) -> Assembler:
        """Return the same with only some of the tools, and those that Closeout adds itself."""
        chosen = set(names)
        if chosen:
            always = {read_result_tool.name, program_tool.name, wait_tool.name, READ_SKILL}
            chosen |= {spec.name for spec in self.manager.specs()} & always
        self.home_folder()  # settles the home, which both keep
        other = copy(self)
        other.manager = self.manager.only(chosen)
        other._plan = None
        return other

    def in_dialect(self, dialect: Dialect) -> Assembler:
        """Return the same with another dialect. Raises UsageError for anything else."""
        other = self._planned(replace(self.plan(), dialect=get_dialect(dialect), may_switch_dialect=False))
        other._dialect = dialect
        return other

    def asking(self, model: Any, base_url: str | None, api_key: str | None) -> Assembler:
        """Return the same with another model. The address and the key are the same for the same vendor."""
        other = copy(self)
        llm, known_url, known_key = self._connection(model) if isinstance(model, str) else (self.config.llm, None, None)
        other._base_url, other._api_key = base_url or known_url, api_key or known_key
        other.client = connect(model, other._base_url, other._api_key, llm, later=True)
        other._folder = None  # scripted models have a home of their own
        other._check_dialect()
        made = other._make_plan()
        taken = (
            "client",
            "home",
            "dialect",
            "may_switch_dialect",
            "remember_dialect",
            "remember_rules",
            "strategy",
            "search_budget",
        )
        return other._planned(replace(self.plan(), **{name: getattr(made, name) for name in taken}))

    def answering(self, answer: Any) -> Assembler:
        """Return the same with another contract of the answers."""
        plan, contract = self.plan(), self._with_forms(contract_of(answer))
        spec = replace(plan.spec, check=with_quotes_checked(plan.spec.check, contract))
        return self._planned(replace(plan, spec=spec, contract=extracted_by(plan.output_formatter, contract)))

    def gated(self, gate: RequestGate | None) -> Assembler:
        """Return the same with a gate for the requests to models."""
        return self._planned(replace(self.plan(), gate=gate))

    def bound(self, deps: Any) -> Assembler:
        """Return the same with dependencies for the tools."""
        return self._planned(self.plan().with_deps(deps))

    def approving(self, rule: ApprovalRule) -> Assembler:
        """Return the same with a rule that approves calls."""
        plan = self.plan()
        return self._planned(replace(plan, spec=replace(plan.spec, approved=(*plan.spec.approved, rule))))

    def _planned(self, plan: AgentPlan) -> Assembler:
        other = copy(self)
        other._plan = plan
        return other

    def plan(self, streamed: bool = False) -> AgentPlan:
        """Return the plan, made on first use."""
        if self._plan is None:
            self._plan = self._make_plan()
        return replace(self._plan, stream=True) if streamed and not self._plan.stream else self._plan

    def store(self) -> Store | None:
        """Return the store of the agent's runs, None if they are kept in memory."""
        folder = self.home_folder()
        return None if folder is None else open_store(folder)

    def home_folder(self) -> Home | None:
        """Return the home of the agent's runs, None if they are kept in memory."""
        if self.spec.home is False:
            return None
        if self.spec.home is None and getattr(self.client, "scripted", False) and not os.environ.get("CLOSEOUT_HOME"):
            return scratch_home()
        if self.spec.home in (None, True):
            return home_folder()
        if self._folder is None:
            self._folder = as_home(self.spec.home).absolute()
        return self._folder

    def _make_plan(self) -> AgentPlan:
        spec, config, settings = self.spec, self.config, self.config.agent
        formatter = spec.output_formatter or OutputFormatter()
        answer = spec.answer or getattr(formatter, "contract", None) or Text()
        contract = extracted_by(formatter, self._with_forms(answer))
        endpoint = f"dialect {self.client.name} {self._base_url or config.llm.base_url or ''}"
        rules = f"rules {endpoint}"
        if told := self._recall(rules):
            self.client.take_lessons(told)
        return AgentPlan(
            spec=spec,
            client=self.client,
            dialect=self._settled_dialect(endpoint),
            manager=self.manager,
            contract=contract,
            limits=Limits.of(settings),
            home=self.home_folder,
            instructions="" if callable(spec.instructions) else spec.instructions or "",
            write_instructions=spec.instructions if callable(spec.instructions) else None,
            settings=settings,
            llm=config.llm,
            prompts=config.prompts,
            markers=config.markers,
            may_switch_dialect=self._dialect == "auto",
            remember_dialect=lambda name: self._remember(endpoint, name),
            remember_rules=lambda: self._remember_rules(rules),
            stream=spec.stream,
            record_prompts=config.journal.prompts,
            output_formatter=formatter,
            make_executor=None if spec.tool_executor is ToolExecutor else spec.tool_executor,
            make_generator=own_generator(spec.answer_generator),
            strategy=spec.strategy or self._own_strategy(),
            search_budget=self._search_budget(),
        )

    def _with_forms(self, contract: AnswerContract[Any]) -> AnswerContract[Any]:
        """Let any text be an answer but a call in a form of the agent's own."""
        return replace(contract, forms=self.spec.forms) if self.spec.forms and type(contract) is Text else contract

    def _own_strategy(self) -> Strategy | None:
        """Return the strategy of an agent without `strategy=`; None: ask once."""
        return SmallModel() if isinstance(self.client, LocalClient) and self.client.name == "local" else None

    def _search_budget(self) -> int | None:
        """Return how many tokens of tool definitions the model is sent; beyond that it searches for tools."""
        tools = self.config.tools
        # A program calls tools as functions, whose signatures it needs.
        writes_programs = self._prefers_programs or getattr(self._dialect, "name", self._dialect) == "code"
        if tools.search == "off" or writes_programs:
            return None
        return 0 if tools.search == "on" else tools.search_budget

    # ------------------------------------------------------------------------------------------------ the tools

    def _make_manager(self, tools: Any, mcp_servers: Any, configured: Sequence[Any]) -> ToolManager:
        configured = (*configured, *self._document_tools())
        if not isinstance(mcp_servers, Mapping):
            mcp_servers = check_list("mcp_servers", mcp_servers, '["python server.py"]')
        servers = (*read_servers(self.config.tools.mcp_servers), *read_servers(mcp_servers))
        programs: list[AnyTool] = []
        if self._runs_programs:
            require_sandbox()
            programs.append(program_tool)
        if (manager := tool_manager(tools)) is not None:
            if servers:
                raise UsageError("With tools=ToolManager(…), pass its servers as ToolManager(mcp_servers=…).")
            for each in configured:
                manager.add(as_tool(with_settings(each, self.config.tools)))
            for each in self._configured_sub_agents(manager.local_tools):
                manager.add(each)
            for each in self._skill_tool((*manager.local_tools, *programs)):
                manager.add(each)
            names = {spec.name for spec in manager.specs()}
            for each in (read_result_tool, *_waiting_for(manager.local_tools), *programs):
                if each.spec.name not in names:
                    manager.add(each)
            for each in manager.local_tools:
                if (with_model := self._with_model(each)) is not each:
                    manager.replace(with_model)
            return manager
        named = (*check_list("tools", tools, "[look_up]"), *configured)
        own = [as_tool(with_settings(each, self.config.tools)) for each in named]
        own += self._configured_sub_agents(own)
        own += (*_waiting_for(own), *programs)
        own += self._skill_tool(own)
        own = [self._with_model(each) for each in own]
        return ToolManager(
            (*own, read_result_tool) if own or servers else (),
            servers,
            blacklist=tuple(self.config.tools.blacklist),
            approval=self.config.tools.approval,
            mcp_lock=self.config.tools.mcp_lock,
            shares_policies=self._shares_policies,
        )

    def _skill_tool(self, tools: Iterable[AnyTool]) -> list[AnyTool]:
        for_scripts = any(getattr(each, "reads_files", False) for each in tools)
        return [self.spec.skills.tool(for_scripts=for_scripts)] if self.spec.skills else []

    def _document_tools(self) -> Sequence[AnyTool]:
        """Return the tools for the documents of the settings, of a simpler form for a weak model."""
        folder = self.config.agent.documents
        if folder is None:
            return ()
        weak = self.client.name.partition(":")[0] == "local" or self.client.capabilities.weak
        try:
            return document_tools(folder, plain=weak)
        except UsageError as error:
            raise ConfigError(f"'agent.documents': {error}") from error

    def _make_secrets(self, given: Any) -> Secrets:
        settings = self.config.tools.secrets.items()
        configured = (Secret(name, each.value, **each.model_dump(exclude={"value"})) for name, each in settings)
        return Secrets((*configured, *check_list("secrets", given, "[Secret('crm_token', tools=['look_up'])]")))

    def _adopt_programs(self) -> bool:
        """Add the tool that runs programs if the client prefers them and they are of use, and return True if so.

        A weak model learns programs from worked examples, which are about looking things up and computing.
        """
        capabilities = self.client.capabilities
        if capabilities.preferred_dialect != "code":
            return False
        specs = self._own_specs()
        if capabilities.weak and not program_slots(specs):
            return False
        if not sandbox_installed():
            text = "%s gives more right answers when it can write programs: pip install 'closeout[code]'."
            logger.warning(text, self.client.name)
            return False
        self._runs_programs = True
        if all(spec.name != program_tool.spec.name for spec in specs):
            self.manager.add(program_tool)
        return True

    def _own_specs(self) -> list[ToolSpec]:
        return [each.spec for each in self.manager.local_tools]

    def _with_model(self, tool: AnyTool) -> AnyTool:
        """Supply a tool that asks a model, and has none, with the one that the settings name or the agent's own."""
        if not isinstance(tool, ModelTool) or tool.ask is not None:
            return tool
        own, client = self.config.tools.models.get(tool.name), self.client
        name = own.model if own is not None else self.config.tools.web.extract_model
        if name and (name != client.name or own is not None):
            llm, base_url, api_key = self._connection(name, None if own is None else own.base_url)
            api_key = api_key if own is None or own.api_key is None else own.api_key
            client = connect(name, base_url, api_key, llm, later=True)
        return tool.with_model(PageModel(client))

    def _connection(self, model: str, base_url: str | None = None) -> tuple[LLMSettings, str | None, str | None]:
        """Return the settings, address and key for another model: this agent's, unless the vendor is another one."""
        llm = self.config.llm
        if model.partition(":")[0] == self.client.name.partition(":")[0]:
            return llm, base_url or self._base_url, self._api_key
        return llm.model_copy(update={"base_url": None, "api_key": None}), base_url, None

    def _configured_sub_agents(self, own: Sequence[AnyTool]) -> list[AnyTool]:
        config = self.config

        def make(name: str, entry: SubAgentSettings, tools: list[AnyTool]) -> Tool[..., Any]:
            """Make an agent of a section `agent.sub_agents.NAME`. What the section leaves open is as here."""

            parts = Parts(entry, f"agent.sub_agents.{name}")
            llm, base_url, api_key = self._connection(entry.model or self.client.name, entry.base_url)
            changes = {
                "agent": without_parts(config.agent).model_copy(
                    update={"documents": entry.documents, "skills": entry.skills, "budget": entry.budget}
                ),
                "llm": llm,
                "tools": config.tools.model_copy(update={"mcp_servers": []}),
            }
            values = {"dialect": entry.dialect, "agent.main_agent.max_turns": entry.max_turns}
            own = self.spec
            below = replace(
                own,
                name=name,
                model=entry.model or self.client,
                tools=tools,
                mcp_servers=entry.mcp_servers,
                dialect=entry.dialect or self._dialect,
                instructions=parts.instructions(),
                base_url=base_url,
                api_key=api_key,
                answer=parts.answer() or Text(),
                output_formatter=parts.made("output_formatter") or own.output_formatter,
                tool_executor=parts.imported("tool_executor") or own.tool_executor,
                answer_generator=parts.imported("answer_generator") or own.answer_generator,
                strategy=parts.strategy(),
                check=parts.checks(),
                code_mode=entry.code_mode,
                **OWN_ALONE,
            )
            made = Assembler(load_config(config.model_copy(update=changes), values=values), below, shares_policies=True)
            if name in config.agent.handoffs:
                return Handoff(made, name=name, description=entry.description)
            return sub_agent_tool(name, entry.description, made.plan)

        return configured_sub_agents(config.agent.sub_agents, own, config.tools, make)

    # ------------------------------------------------------------------------------------------------ the dialect

    def _check_dialect(self) -> None:
        """Refuse an unknown name, what is not a dialect, an invalid template, and an endpoint that cannot serve it."""
        dialect, capabilities = self._dialect, self.client.capabilities
        get_dialect("function_call" if dialect == "auto" else dialect, self.config.prompts)
        if self.spec.output_parser is not None and dialect not in ("auto", "cot_chat", "cot_completion"):
            name = getattr(dialect, "name", dialect)
            raise UsageError(
                f"output_parser reads replies in cot_chat and cot_completion, got the dialect {name}. "
                'Pass dialect="cot_chat", or give your own dialect a reader with your parser.'
            )
        problem = serves(dialect, capabilities) if isinstance(dialect, str) and dialect != "auto" else ""
        if problem and capabilities.known:
            raise ConfigError(problem)

    def _settled_dialect(self, endpoint: str) -> str | Dialect:
        """Return the dialect; for "auto" what was learned of the endpoint, else what its client declares.

        An endpoint of which nothing is known is asked in native calls; its first reply is the probe. If it refuses
        tools, or its model keeps writing calls as text, the run switches, and the endpoint is remembered.
        """
        if self._dialect != "auto":
            return self._dialect
        capabilities = self.client.capabilities
        preferred = capabilities.preferred_dialect
        if preferred == "code" and not self._prefers_programs:
            # Native calls of a small model are worse than text only if the text has worked examples.
            native = capabilities.weak and capabilities.native_tools and not examples_slots(self._own_specs())
            preferred = None if native else "cot_completion"
        if preferred:
            return preferred
        if not capabilities.chat:
            return "cot_completion"
        if not capabilities.native_tools:
            return "cot_chat"
        known, _, until = ("" if capabilities.known else self._recall(endpoint) or "").partition(" until ")
        return known if known and float(until or "inf") > time.time() else "function_call"

    def _recall(self, endpoint: str) -> str | None:
        folder = self.home_folder()
        if folder is None:
            return None
        with open_to_read(folder) as store:
            return store.noted(endpoint)

    def _remember_rules(self, place: str) -> None:
        if self.client.has_learned:
            self.client.has_learned = False
            self._remember(place, self.client.lessons())

    def _remember(self, endpoint: str, dialect: str) -> None:
        store = self.store()
        if store is not None:
            store.note(endpoint, dialect)


def _waiting_for(tools: Iterable[AnyTool]) -> list[AnyTool]:
    """Return the tool `wait` if agents among the tools work in the background."""
    return [wait_tool] if any(map(has_background, tools)) else []
