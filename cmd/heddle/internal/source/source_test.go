package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

const h800 = "../../../../test/machines/h800-8ib-bond"

func load(t *testing.T, args ...string) (*Subject, error) {
	t.Helper()
	t.Setenv("NODE_NAME", "")
	var f Flags
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Register(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f.Load(t.Context())
}

// TestHostUnderRoots scans a tree of files in place of this host's kernel.
func TestHostUnderRoots(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	s, err := load(t, "--node-name", "gpu-1",
		"--sysfs-root", tree.Sys(), "--dev-root", tree.Dev(),
		"--proc-root", tree.Proc())
	if err != nil {
		t.Fatal(err)
	}
	roles := map[machine.Role]int{}
	for i := range s.Machine.HCAs {
		roles[s.Machine.HCAs[i].Role]++
	}
	if s.Machine.Node != "gpu-1" || roles[machine.RoleFabric] != 8 || roles[machine.RoleStorage] != 1 {
		t.Errorf("node %q with HCAs %v, want gpu-1 with 8 of the fabric and 1 of storage", s.Machine.Node, roles)
	}
}

func TestDumpAndConfiguration(t *testing.T) {
	s, err := load(t, "--machine", h800+".json", "--config", h800+".config")
	if err != nil {
		t.Fatal(err)
	}
	if s.Machine.Node != "h800-8ib-bond" || len(s.Config.Labels) != 3 {
		t.Errorf("node %q with %d rules", s.Machine.Node, len(s.Config.Labels))
	}
	if s, err = load(t, "--machine", h800+".json", "--node-name", "other"); err != nil || s.Machine.Node != "other" {
		t.Errorf("error %v, node %v", err, s)
	}
}

func TestOverrideOfTheNodeHolds(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"version": "v1", "nodes-config": "- nodeName: h800-*\n  usage: inference\n- nodeName: b\n  usage: training\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for node, want := range map[string]config.Usage{"": "inference", "b": "training", "c": ""} {
		s, err := load(t, "--machine", h800+".json", "--config", dir, "--node-name", node)
		if err != nil || s.Config.Usage != want {
			t.Errorf("node %q: error %v, usage %q, want %q", node, err, s.Config.Usage, want)
		}
	}
}

func TestFaultsNameTheFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	for _, args := range [][]string{
		{"--machine", missing},
		{"--machine", h800 + ".json", "--config", missing},
	} {
		if _, err := load(t, args...); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("%v: error %v, want one with the path", args, err)
		}
	}
}
