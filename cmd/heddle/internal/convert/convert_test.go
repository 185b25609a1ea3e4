package convert_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/convert"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/golden"
)

// node is the configuration that a node has with what was printed.
func node(t *testing.T, r *convert.Result) config.NodeConfig {
	t.Helper()
	c, err := config.Parse(map[string][]byte{
		config.KeyVersion: []byte(config.Version), r.Key: []byte(r.String()),
	}, &rule.CEL{})
	if err != nil {
		t.Fatalf("%v in\n%s", err, r)
	}
	return c.Cluster
}

func converted(t *testing.T, from, text string) *convert.Result {
	t.Helper()
	r, err := convert.Convert(from, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var update = flag.Bool("update", false, "write the results in testdata")

// TestConvert: the file has the name of a peer, a file of its, and what the CLI makes of that.
func TestConvert(t *testing.T) {
	golden.Rows(t, "testdata/files.txt", *update, func(input string) string {
		from, text, _ := strings.Cut(input, "\n")
		r, err := convert.Convert(from, []byte(text))
		if err != nil {
			return "error: " + err.Error()
		}
		node(t, r)
		return r.Key + "\n" + strings.TrimSuffix(r.String(), "\n")
	})
}

// A pod with a GPU as NVIDIA's plugin has it, and nothing else, asks for its part.
func TestUnmodifiedPodsHaveTheirPart(t *testing.T) {
	limits := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	for kind, want := range map[string]quota.Request{
		"timeSlicing": {GPUs: 1, MemoryPercent: 33, Policy: quota.FixedShare},
		"mps":         {GPUs: 1, VCore: 33, MemoryPercent: 33, Policy: quota.FixedShare},
	} {
		c := node(t, converted(t, "nvidia", "version: v1\nsharing: {"+kind+": {resources: [{name: nvidia.com/gpu, replicas: 3}]}}"))
		got, err := quota.ParseRequest(limits, nil, &c)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", kind, err, diff)
		}
		if none := c.SGPU.Enforce.Memory == config.EnforceNone; none != (kind == "timeSlicing") {
			t.Errorf("%s: enforced by %+v", kind, c.SGPU.Enforce)
		}
	}
}

// FuzzConvert: whatever is read, what comes out is a configuration, with its
// notes above it.
func FuzzConvert(f *testing.F) {
	rows, err := os.ReadFile("testdata/files.txt")
	if err != nil {
		f.Fatal(err)
	}
	for row := range strings.SplitSeq(string(rows), "\n## ") {
		_, row, _ = strings.Cut(row, "\n")
		from, text, _ := strings.Cut(row, "\n")
		text, _, _ = strings.Cut(text, "\n=>\n")
		f.Add(from, text)
	}
	f.Fuzz(func(t *testing.T, from, text string) {
		if r, err := convert.Convert(from, []byte(text)); err == nil {
			node(t, r)
		}
	})
}
