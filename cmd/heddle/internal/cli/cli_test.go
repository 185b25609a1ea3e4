package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestTableAlignsWhatATerminalShows(t *testing.T) {
	rows := [][]string{{"", "GPU0", "CPUs"}, {"mlx5_0", "PIX", "0-3"}, {"größe", "X"}, {"a\x1b[31m\nb", "", ""}}
	want := "          GPU0  CPUs\n" +
		"mlx5_0    PIX   0-3\n" +
		"größe     X\n" +
		"a?[31m?b\n"
	if diff := cmp.Diff(want, Table(rows)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestTableOfInvalidText(t *testing.T) {
	if got := Table([][]string{{"\xff\xfe", "b"}, {"long cell", "b"}}); !strings.HasSuffix(got, "long cell  b\n") {
		t.Errorf("got %q", got)
	}
}

func TestExit(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for _, tt := range []struct {
		name   string
		err    error
		code   int
		stderr string
	}{
		{"done", nil, 0, ""},
		{"findings", fmt.Errorf("doctor: %w", ErrFindings), 1, ""},
		{"failed", errors.New("read x: gone"), 2, "heddle: read x: gone\n"},
		{
			"a file", fmt.Errorf("read x: %w", os.ErrNotExist), 2,
			"heddle: read x: file does not exist\nCheck the path.\n",
		},
		{
			"forbidden", fmt.Errorf("read Node a: %w", apierrors.NewForbidden(nodes, "a", errors.New("no"))), 2,
			"heddle: read Node a: nodes \"a\" is forbidden: no\n" +
				"Ask an administrator for this right; kubectl auth can-i --list shows those that you have.\n",
		},
		{
			"no such node", apierrors.NewNotFound(nodes, "a"), 2,
			"heddle: nodes \"a\" not found\nCheck the name, and the cluster: kubectl config current-context.\n",
		},
		{
			"no server", &url.Error{Op: "Get", URL: "http://x", Err: &net.OpError{Op: "dial", Err: errors.New("refused")}}, 2,
			"heddle: Get \"http://x\": dial: refused\n" +
				"Check the address, which --server, --kubeconfig and --context decide, and that it can be reached from here.\n",
		},
		{
			"a busy address has its own", &net.OpError{Op: "listen", Err: errors.New("in use")}, 2,
			"heddle: listen: in use\n",
		},
		{"usage", UsageErrorf(&cobra.Command{Use: "inspect"}, "no such flag"), 2, "heddle: no such flag\nSee 'inspect --help' for usage\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr strings.Builder
			if code := Exit(tt.err, &stderr); code != tt.code || stderr.String() != tt.stderr {
				t.Errorf("exit %d with %q, want %d with %q", code, stderr.String(), tt.code, tt.stderr)
			}
		})
	}
}

func TestOutput(t *testing.T) {
	for format, want := range map[string]string{
		"table": "NAME\n", "wide": "NAME\n", "json": "{\n  \"name\": \"x\"\n}\n", "yaml": "name: x\n", "name": "node/x\n",
		"jsonpath={.name}-{.none}": "x-",
	} {
		var out strings.Builder
		c := &cobra.Command{Use: "test"}
		c.SetOut(&out)
		o := AddOutput(c, FormatName)
		o.Names = []string{"node/x"}
		c.RunE = func(c *cobra.Command, _ []string) error { return o.Print(c, map[string]string{"name": "x"}, "NAME\n") }
		c.SetArgs([]string{"--output", format})
		if err := c.Execute(); err != nil || out.String() != want {
			t.Errorf("%s: error %v, output %q", format, err, out.String())
		}
	}
}

// --watch prints an object again only if it has changed, until the context ends.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out strings.Builder
		reads := 0
		c := &cobra.Command{Use: "test"}
		c.SetOut(&out)
		o := AddOutput(c)
		c.RunE = func(c *cobra.Command, _ []string) error {
			if reads++; reads == 5 {
				cancel()
			}
			return o.PrintFindings(c, reads/3, fmt.Sprint("AGE ", reads, "\n"), 1)
		}
		o.AddWatch(c)
		c.SetArgs([]string{"-w"})
		if err := c.ExecuteContext(ctx); err != nil || out.String() != "AGE 1\n\nAGE 3\n" {
			t.Errorf("error %v, output %q", err, out.String())
		}
	})
}
