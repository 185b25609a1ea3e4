package strict

import (
	"errors"
	"testing"
)

// TestRead shows the place of every sort of error.
func TestRead(t *testing.T) {
	type inner struct {
		N    int      `yaml:"n"`
		List []string `yaml:"list"`
	}
	type outer struct {
		A inner            `yaml:"a"`
		B map[string]inner `yaml:"b"`
	}
	for _, tt := range []struct{ name, text, want string }{
		{"good", "a: {n: 1}\nb: {x: {list: [y]}}\n", ""},
		{"empty", "# nothing\n", ""},
		{"unknown key", "a:\n  n: 1\n  m: 2\n", "f:3: a.m: unknown key"},
		{"duplicate key", "b:\n  x: {}\n  x: {}\n", "f:3: b.x: duplicate key; the first is on line 2"},
		{"wrong type", "a:\n  n: one\n", "f:2: a.n: cannot unmarshal !!str `one` into int"},
		{"wrong type, long", "a: {n: 1}\nb: {x: {n: a-long-word}}\n", "f:2: b.x.n: cannot unmarshal !!str `a-long-...` into int"},
		{"section for a text", "a:\n  list:\n  - {}\n", "f:3: a.list[0]: cannot unmarshal !!map into string"},
		{"no value", "a:\n  n:\n", "f:2: a.n: has no value: remove the key or set a value"},
		{"alias", "a: &x {}\n", "f:1: a: YAML anchors, aliases, merges and tags are not supported"},
		{"merge", "a:\n  <<: {n: 1}\n", "f:2: a: YAML anchors, aliases, merges and tags are not supported"},
		{"two documents", "a: {}\n---\na: {}\n", "f:2: only one YAML document is allowed"},
		{"no YAML", "a: [\n", "f:1: invalid YAML: did not find expected node content"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := errors.Join(Read("f", []byte(tt.text), new(outer)).Errors...); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestLine(t *testing.T) {
	d := Read("f", []byte("a:\n  b:\n  - c: 1\n"), new(map[string]any))
	for path, want := range map[string]int{"a.b[0].c": 3, "a.b[0].d": 3, "a.b[7]": 2, "a.x.y": 1, "z": 1} {
		if got := d.Line(path); got != want {
			t.Errorf("%s is on line %d, want %d", path, got, want)
		}
	}
}
