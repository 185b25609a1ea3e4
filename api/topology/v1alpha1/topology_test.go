package v1alpha1_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

func TestGroupJSON(t *testing.T) {
	for _, tt := range []struct {
		name  string
		group v1alpha1.Group
		want  string
	}{
		{
			"a node has no child",
			v1alpha1.Group{Name: "a", Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady},
			`{"name":"a","kind":"node","status":"Ready"}`,
		},
		{
			"a group always has",
			v1alpha1.Group{Name: "leaf-1", Kind: "leaf", Status: v1alpha1.StatusNotReady},
			`{"name":"leaf-1","kind":"leaf","child":[],"status":"NotReady"}`,
		},
		{
			"groups nest",
			v1alpha1.Group{Name: "s", Kind: "spine", Status: v1alpha1.StatusDegraded, Child: []v1alpha1.Group{
				{Name: "l", Kind: "leaf", Child: []v1alpha1.Group{{Name: "a", Kind: v1alpha1.KindNode, Status: "Ready"}}, Status: "Ready"},
			}},
			`{"name":"s","kind":"spine","child":[{"name":"l","kind":"leaf","child":[{"name":"a","kind":"node","status":"Ready"}],"status":"Ready"}],"status":"Degraded"}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := json.Marshal(tt.group)
			if err != nil || string(b) != tt.want {
				t.Fatalf("%s, %v; want %s", b, err, tt.want)
			}
			var back v1alpha1.Group
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatal(err)
			}
			again, err := json.Marshal(back)
			if err != nil || string(again) != tt.want {
				t.Errorf("read and written: %s, %v", again, err)
			}
		})
	}
}

func TestScheme(t *testing.T) {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{v1alpha1.Kind, v1alpha1.Kind + "List"} {
		if !s.Recognizes(v1alpha1.GroupVersion().WithKind(kind)) {
			t.Errorf("the scheme does not know %s", kind)
		}
	}
}

// schema is a part of an OpenAPI v3 schema.
type schema struct {
	Type       string            `yaml:"type"`
	Format     string            `yaml:"format"`
	Properties map[string]schema `yaml:"properties"`
	Items      *schema           `yaml:"items"`
	Required   []string          `yaml:"required"`
	Enum       []string          `yaml:"enum"`
	MaxLength  int               `yaml:"maxLength"`
	Pattern    string            `yaml:"pattern"`
	MaxItems   int               `yaml:"maxItems"`
	Maximum    *int              `yaml:"maximum"`
	Minimum    *int              `yaml:"minimum"`
}

type crd struct {
	Spec struct {
		Group string `yaml:"group"`
		Scope string `yaml:"scope"`
		Names struct {
			Plural, Singular, Kind string
			ShortNames             []string `yaml:"shortNames"`
		} `yaml:"names"`
		Versions []struct {
			Name         string              `yaml:"name"`
			Subresources map[string]struct{} `yaml:"subresources"`
			Schema       struct {
				Root schema `yaml:"openAPIV3Schema"`
			} `yaml:"schema"`
		} `yaml:"versions"`
	} `yaml:"spec"`
}

func load(t *testing.T) crd {
	t.Helper()
	b, err := os.ReadFile("../../../deploy/helm/heddle/crds/topology.heddle.dev_nodetopologies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c crd
	if err := yaml.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCRDNames(t *testing.T) {
	c := load(t)
	if c.Spec.Group != v1alpha1.GroupName || c.Spec.Scope != "Cluster" || c.Spec.Names.Plural != v1alpha1.Plural ||
		c.Spec.Names.Kind != v1alpha1.Kind || len(c.Spec.Versions) != 1 || c.Spec.Versions[0].Name != v1alpha1.Version {
		t.Errorf("the CRD is %+v", c.Spec)
	}
	if diff := cmp.Diff([]string{"nt"}, c.Spec.Names.ShortNames); diff != "" {
		t.Errorf("short names (-want +got):\n%s", diff)
	}
	if _, ok := c.Spec.Versions[0].Subresources["status"]; !ok {
		t.Error("status is no subresource")
	}
}

// A node writes this object, so every list and string in it has a bound, and no string has characters that
// change what a terminal shows.
func TestCRDIsBounded(t *testing.T) {
	root := load(t).Spec.Versions[0].Schema.Root
	checked := 0
	var walk func(path string, s schema)
	walk = func(path string, s schema) {
		checked++
		switch s.Type {
		case "string":
			if s.MaxLength == 0 && len(s.Enum) == 0 && s.Format != "date-time" {
				t.Errorf("%s has no bound", path)
			}
			for _, text := range []string{"leaf\x1b[2J", "a\nb", "\u202eb"} {
				matches, err := regexp.MatchString(s.Pattern, text)
				if err != nil || matches && len(s.Enum) == 0 && s.Format == "" && path != "status.conditions[].message" {
					t.Errorf("%s may be %q (%v)", path, text, err)
				}
			}
			if strings.HasPrefix(s.Pattern, `^\PC`) && !regexp.MustCompile(s.Pattern).MatchString("Leaf 7, 上海: swp1/2") {
				t.Errorf("%s may not be a usual name", path)
			}
		case "array":
			if s.MaxItems == 0 {
				t.Errorf("%s has any length", path)
			}
			walk(path+"[]", *s.Items)
		case "integer":
			if s.Minimum == nil {
				t.Errorf("%s may be negative", path)
			}
		}
		for name, p := range s.Properties {
			walk(path+"."+name, p)
		}
	}
	for _, part := range []string{"spec", "status"} {
		walk(part, root.Properties[part])
	}
	if checked < 30 {
		t.Errorf("only %d parts of the schema were seen", checked)
	}
}
