package strict

import (
	"errors"
	"testing"
	"time"
)

// TestRead shows the place of every sort of error.
func TestRead(t *testing.T) {
	type inner struct {
		N    int           `yaml:"n"`
		F    float64       `yaml:"f"`
		B    bool          `yaml:"b"`
		D    time.Duration `yaml:"d"`
		Any  string        `yaml:"any" scalar:"any"`
		List []string      `yaml:"list"`
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
		{"wrong type", "a:\n  n: one\n", `f:2: a.n: invalid value "one": want a whole number`},
		{"section for a number", "a: {n: 1}\nb: {x: {n: {}}}\n", `f:2: b.x.n: invalid value "": want a whole number`},
		{"fraction", "a: {n: 1}\nb: {x: {n: 1.5}}\n", `f:2: b.x.n: invalid value "1.5": want a whole number`},
		{"exponent", "a: {n: 1e3}\n", `f:1: a.n: invalid value "1e3": want a whole number`},
		{"beyond 63 bits", "a: {n: 9223372036854775808}\n", `f:1: a.n: invalid value "9223372036854775808": want a whole number`},
		{"beyond 64 bits", "a: {n: -99999999999999999999}\n", `f:1: a.n: invalid value "-99999999999999999999": want a whole number`},
		{"number in quotes", "a: {f: '1.5'}\n", `f:1: a.f: invalid value "1.5": want a number`},
		{"whole number", "a: {n: 0x10, f: 2, b: true, any: 0x10, list: ['1', on]}\n", ""},
		{"duration without a unit", "a: {d: 0}\n", `f:1: a.d: invalid value "0": want a duration such as 30s`},
		{"duration", "a: {d: 0s}\n", ""},
		{"words of YAML 1.1", "a: {b: yes}\n", `f:1: a.b: invalid value "yes": want true or false`},
		{"bool for a text", "a: {list: [a, true]}\n", `f:1: a.list[1]: invalid value "true": want a text: put it in quotes`},
		{"section for a text", "a:\n  list:\n  - {}\n", `f:3: a.list[0]: invalid value "": want a text`},
		{"no value", "a:\n  n:\n", "f:2: a.n: has no value: remove the key or set a value"},
		{"alias", "a: &x {}\n", "f:1: a: YAML anchors, aliases, merges and tags are not supported"},
		{"merge", "a:\n  <<: {n: 1}\n", "f:2: a.<<: YAML anchors, aliases, merges and tags are not supported"},
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
	d := Read("f", []byte("a:\n  b:\n  - c: 1\n"), new(map[string]map[string][]map[string]int))
	for path, want := range map[string]int{"a.b[0].c": 3, "a.b[0].d": 3, "a.b[7]": 2, "a.x.y": 1, "z": 1} {
		if got := d.Line(path); got != want {
			t.Errorf("%s is on line %d, want %d", path, got, want)
		}
	}
}
