package chart

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
)

// TestConfigSchema: helm rejects a key of `config` that no daemon knows. The sections of
// the schema are made from the types; -update writes them.
func TestConfigSchema(t *testing.T) {
	const file = chartDir + "/values.schema.json"
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, definition, ok := strings.Cut(string(got), `"nodeConfig": {`)
	if !ok {
		t.Fatal("no nodeConfig in " + file)
	}
	sections := map[string]reflect.Type{}
	for _, f := range keysOf(reflect.TypeFor[config.NodeConfig]()) {
		sections[f.Name] = f.Type
	}
	for _, section := range []string{"sgpu", "resources", "rdma", "health", "topology", "taints"} {
		if sections[section] == nil {
			t.Errorf("no section %s in the configuration", section)
			continue
		}
		text, err := json.Marshal(schemaOf(sections[section], ""))
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(`(?m)^        "` + section + `": .*\},$`)
		if !line.MatchString(definition) {
			t.Errorf("%s has no line for %s", file, section)
		}
		definition = line.ReplaceAllLiteralString(definition, `        "`+section+`": `+string(text)+",")
	}
	want := before + `"nodeConfig": {` + definition
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is stale: run this test with -update\n%s", file, diff)
	}
}

// keysOf are the fields of a section, each under its key's name.
func keysOf(t reflect.Type) (fields []reflect.StructField) {
	for _, f := range reflect.VisibleFields(t) {
		if f.Name, _, _ = strings.Cut(f.Tag.Get("yaml"), ","); f.Name != "" && f.Name != "-" {
			fields = append(fields, f)
		}
	}
	return fields
}

// schemaOf has the keys and the words that are allowed. Numbers, durations and texts are
// the daemons' to check: what --set gives has another type than what stands in a file.
func schemaOf(t reflect.Type, words string) map[string]any {
	// A list can have an empty section, which the daemons reject with its line.
	switch {
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": []string{"array", "null"}, "items": schemaOf(t.Elem(), words)}
	case strings.Contains(words, "true"):
		return map[string]any{} // A truth value in a file, and a text in some others.
	case words != "":
		return map[string]any{"enum": strings.Split(words, ",")}
	case t.Kind() == reflect.Struct:
		properties := map[string]any{}
		for _, f := range keysOf(t) {
			properties[f.Name] = schemaOf(f.Type, f.Tag.Get("enum"))
		}
		return map[string]any{"type": []string{"object", "null"}, "additionalProperties": false, "properties": properties}
	case t.Kind() == reflect.Map:
		return map[string]any{"type": []string{"object", "null"}}
	}
	return map[string]any{}
}
