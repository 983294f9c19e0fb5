// Asks llama.cpp itself what pagedrun is expected to answer. Built and run by record_chat_vectors.py against the
// unpatched sources; nothing of pagedrun is in here.
//
// stdin:  {"cases": [{template_text, bos, eos, request, replies}], "schemas": [text]}
// stdout: {"cases": [...], "schemas": [...]} in the same order

#include "chat.h"
#include "json-schema-to-grammar.h"
#include "json.h"

#include <iostream>
#include <iterator>

using json = common_json;

static common_chat_templates_inputs read_request(const json & request) {
    common_chat_templates_inputs in;
    in.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    in.messages         = common_chat_msgs_parse_oaicompat(request.at("messages"));
    if (request.contains("tools")) {
        in.tools = common_chat_tools_parse_oaicompat(request.at("tools"));
    }
    if (request.contains("tool_choice")) {
        in.tool_choice = common_chat_tool_choice_parse_oaicompat(request.at("tool_choice").get<std::string>());
    }
    if (request.contains("json_schema")) {
        in.json_schema = request.at("json_schema").get<std::string>();
    }
    if (request.contains("add_generation_prompt")) {
        in.add_generation_prompt = request.at("add_generation_prompt").get<bool>();
    }
    if (request.contains("enable_thinking")) {
        in.enable_thinking = request.at("enable_thinking").get<bool>();
    }
    if (request.contains("continue_final_message")) {
        in.continue_final_message = common_chat_continuation_parse(request.at("continue_final_message"));
        in.add_generation_prompt  = false;
    }
    for (const auto & [name, value] : request.at("template_kwargs").items()) {
        in.chat_template_kwargs[name] = value.dump();
    }
    return in;
}

static json message(const common_chat_msg & msg) {
    json calls = json::array();
    for (const auto & call : msg.tool_calls) {
        calls.push_back({ {"id", call.id}, {"name", call.name}, {"arguments", call.arguments} });
    }
    return { {"content", msg.content}, {"reasoning", msg.reasoning_content}, {"tool_calls", calls} };
}

// The whole reply, and content and reasoning after each byte where they change.
static json read_reply(const std::string & text, const common_chat_parser_params & parser) {
    json steps = json::array();
    common_chat_msg before;
    for (size_t n = 1; n <= text.size(); n++) {
        if (n < text.size() && (text[n] & 0xC0) == 0x80) {
            continue;  // inside a character
        }
        common_chat_msg now;
        try {
            now = common_chat_parse(text.substr(0, n), true, parser);
        } catch (const std::exception &) {
            continue;
        }
        if (now.content != before.content || now.reasoning_content != before.reasoning_content) {
            steps.push_back({ {"bytes", n}, {"content", now.content}, {"reasoning", now.reasoning_content} });
            before = now;
        }
    }
    json out = { {"text", text}, {"steps", steps} };
    try {
        out["message"] = message(common_chat_parse(text, false, parser));
    } catch (const std::exception & e) {
        out["refused"] = std::string(e.what());
    }
    return out;
}

static json run_case(const json & c) {
    auto templates = common_chat_templates_init(nullptr, c.at("template_text").get<std::string>(), c.at("bos").get<std::string>(), c.at("eos").get<std::string>());
    common_chat_params params;
    try {
        params = common_chat_templates_apply(templates.get(), read_request(c.at("request")));
    } catch (const std::exception & e) {
        return { {"refused", std::string(e.what())} };
    }
    common_chat_parser_params parser(params);
    parser.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    if (!params.parser.empty()) {
        parser.parser.load(params.parser);
    }
    json triggers = json::array();
    for (const auto & trigger : params.grammar_triggers) {
        triggers.push_back(json::array({ (int) trigger.type, trigger.value }));
    }
    json replies = json::array();
    for (const auto & reply : c.at("replies")) {
        replies.push_back(read_reply(reply.get<std::string>(), parser));
    }
    json out = {
        {"prompt",             params.prompt},
        {"generation_prompt",  params.generation_prompt},
        {"grammar",            params.grammar},
        {"grammar_lazy",       params.grammar_lazy},
        {"triggers",           triggers},
        {"preserved_tokens",   params.preserved_tokens},
        {"stops",              params.additional_stops},
        {"supports_thinking",  params.supports_thinking},
        {"thinking_start_tag", params.thinking_start_tag},
        {"thinking_end_tags",  params.thinking_end_tags},
        {"replies",            replies},
    };
    try {
        out["before"] = message(common_chat_parse("", true, parser));
    } catch (const std::exception &) {
        out["before"] = message({});
    }
    return out;
}

static json run_schema(const json & schema) {
    try {
        json parsed = json::parse(schema.get<std::string>());
        if (parsed.is_object() && parsed.empty()) {
            parsed["type"] = "object";  // as llama-server does
        }
        return { {"grammar", json_schema_to_grammar(parsed)} };
    } catch (const std::exception & e) {
        return { {"refused", std::string(e.what())} };
    }
}

int main() {
    const json in = json::parse(std::string(std::istreambuf_iterator<char>(std::cin), {}));
    json cases   = json::array();
    json schemas = json::array();
    for (const auto & c : in.at("cases")) {
        cases.push_back(run_case(c));
    }
    for (const auto & s : in.at("schemas")) {
        schemas.push_back(run_schema(s));
    }
    std::cout << json{ {"cases", cases}, {"schemas", schemas} }.dump() << "\n";
}
