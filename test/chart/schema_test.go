package chart

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/heddle-dev/heddle/api/config"
)

// schema is the part of JSON Schema that these tests look at.
type schema struct {
	Ref         string            `json:"$ref"`
	Enum        []string          `json:"enum"`
	Properties  map[string]schema `json:"properties"`
	Definitions map[string]schema `json:"definitions"`
	Additional  json.RawMessage   `json:"additionalProperties"`
}

func loadSchema(t *testing.T) schema {
	t.Helper()
	text, err := os.ReadFile(chartDir + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// A key of the schema without a default has no description, and one of
// values.yaml that the schema lacks cannot be set.
func TestSchemaAndValuesHaveTheSameKeys(t *testing.T) {
	text, err := os.ReadFile(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	s := loadSchema(t)
	delete(s.Properties, "global") // Helm's own
	var fromSchema, fromValues []string
	walkSchema(s, s, "", &fromSchema)
	walkValues(values, "", &fromValues)
	slices.Sort(fromSchema)
	slices.Sort(fromValues)
	if diff := cmp.Diff(fromSchema, fromValues); diff != "" {
		t.Errorf("(-schema +values):\n%s", diff)
	}
}

// walkSchema goes as deep as objects are closed; what is open inside is the
// API's or the configuration's.
func walkSchema(root, s schema, at string, keys *[]string) {
	for name, child := range s.Properties {
		*keys = append(*keys, at+name)
		if ref, ok := strings.CutPrefix(child.Ref, "#/definitions/"); ok {
			child = root.Definitions[ref]
		}
		if string(child.Additional) == "false" && name != "resources" {
			walkSchema(root, child, at+name+".", keys)
		}
	}
}

func walkValues(values map[string]any, at string, keys *[]string) {
	for name, value := range values {
		*keys = append(*keys, at+name)
		child, ok := value.(map[string]any)
		if ok && !slices.Contains([]string{"cluster", "nodeSelector", "affinity", "resources"}, name) {
			walkValues(child, at+name+".", keys)
		}
	}
}

// The chart knows every key of a NodeConfig, and no other.
func TestSchemaFollowsTheConfiguration(t *testing.T) {
	definition := loadSchema(t).Definitions["nodeConfig"]
	want := []string{"nodeName", "nodeSelector"}
	for field := range reflect.TypeFor[config.NodeConfig]().Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("yaml"), ","); name != "-" {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(definition.Properties))); diff != "" {
		t.Errorf("keys (-configuration +schema):\n%s", diff)
	}
	enums := func(of reflect.Type, properties map[string]schema) {
		for field := range of.Fields() {
			words, ok := field.Tag.Lookup("enum")
			if !ok {
				continue
			}
			name := field.Tag.Get("yaml")
			if diff := cmp.Diff(strings.Split(words, ","), properties[name].Enum); diff != "" {
				t.Errorf("%s (-configuration +schema):\n%s", name, diff)
			}
		}
	}
	enums(reflect.TypeFor[config.NodeConfig](), definition.Properties)
	enums(reflect.TypeFor[config.Taints](), definition.Properties["taints"].Properties)
}
