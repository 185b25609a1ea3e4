package strict

import (
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write the results in testdata")

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
	golden.Rows(t, "testdata/errors.txt", *update, func(text string) string {
		return fmt.Sprint(errors.Join(Read("f", []byte(text), new(outer)).Errors...))
	})
}

func TestLine(t *testing.T) {
	d := Read("f", []byte("a:\n  b:\n  - c: 1\n"), new(map[string]map[string][]map[string]int))
	for path, want := range map[string]int{"a.b[0].c": 3, "a.b[0].d": 3, "a.b[7]": 2, "a.x.y": 1, "z": 1} {
		if got := d.Line(path); got != want {
			t.Errorf("%s is on line %d, want %d", path, got, want)
		}
	}
}
