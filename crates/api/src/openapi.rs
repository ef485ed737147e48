//! The OpenAPI 3.1 document, made from the routes themselves.
//!
//! OpenAPI 3.1 takes JSON Schema 2020-12 as it is, which is what the types' own schemas are: one
//! derive serves records, the guest's protocol and this document.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::access::Access;
use crate::endpoint::{Answer, Endpoint};
use crate::problem::Problem;
use crate::routes;

/// The document of this version, with keys in a fixed order.
#[must_use]
pub fn document() -> Value {
    build(&routes::all())
}

fn build(endpoints: &[Endpoint]) -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|s| s.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let problem = generator.subschema_for::<Problem>();
    let mut paths = Map::new();
    for endpoint in endpoints {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        path[endpoint.method.as_str().to_ascii_lowercase()] = operation(endpoint, &mut generator);
    }
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cofferdam",
            "version": "v1",
            "summary": "Runs of coding agents in sealed sandboxes: start, watch, stop, review.",
            "description": "Times are milliseconds since the Unix epoch, sizes are bytes, money is millionths of a US \
                dollar. Errors are `application/problem+json` with a stable code. Requests with another method than \
                GET carry `application/json`, at most 1 MiB.",
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": { "Problem": {
                "description": "Refused or failed; the code is explained in docs/errors.",
                "content": { "application/problem+json": { "schema": problem } },
            }},
            "securitySchemes": { "bearer": {
                "type": "http", "scheme": "bearer",
                "description": "The operator's token, or a browser session.",
            }},
        },
    })
}

fn operation(endpoint: &Endpoint, generator: &mut SchemaGenerator) -> Value {
    let (status, media, schema) = match endpoint.answer {
        Answer::Json { status, schema } => (status, "application/json", Some(schema(generator))),
        Answer::Events { schema } => (200, "text/event-stream", Some(schema(generator))),
        Answer::Document { media } => (200, media, None),
    };
    let content = schema.map_or_else(|| json!({}), |schema| json!({ "schema": schema }));
    let mut operation = json!({
        "operationId": endpoint.id,
        "summary": endpoint.summary,
        "x-access": endpoint.access.as_str(),
        "parameters": parameters(endpoint, generator),
        "responses": {
            status.to_string(): { "description": "Done.", "content": { media: content } },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    });
    if let Some(body) = endpoint.body {
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": body(generator) } },
        });
    }
    operation["security"] = match endpoint.access {
        Access::Anyone | Access::LocalSocket => json!([]),
        Access::AtLeast(_) => json!([{ "bearer": [] }]),
    };
    operation
}

/// Names in braces of the path, then each property of the query's type.
fn parameters(endpoint: &Endpoint, generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut list: Vec<Value> = endpoint
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| {
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
        })
        .collect();
    if matches!(endpoint.answer, Answer::Json { status: 201, .. }) {
        list.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "description": "Repeat a request with the same key and nothing happens twice.",
            "schema": { "type": "string", "maxLength": crate::endpoint::MAX_KEY_BYTES },
        }));
    }
    let Some(query) = endpoint.query else { return list };
    let reference = query(generator).to_value();
    let name = reference["$ref"].as_str().and_then(|r| r.rsplit('/').next()).unwrap_or_default();
    let Some(object) = generator.definitions().get(name).cloned() else { return list };
    let required = |name: &str| {
        object["required"].as_array().is_some_and(|r| r.iter().any(|v| v.as_str() == Some(name)))
    };
    for (name, property) in object["properties"].as_object().into_iter().flatten() {
        list.push(json!({
            "name": name, "in": "query", "required": required(name),
            "description": property["description"], "schema": property,
        }));
    }
    list
}
