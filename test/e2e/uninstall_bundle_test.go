//go:build e2e && linux

package e2e

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What must not be in a support bundle: a daemon's environment, and a Secret beside it.
const envWord, secretWord = "word-of-an-environment", "word-of-a-secret"

func stepBundle(t *testing.T, b *removable) {
	cli, file := b.laptop(t), filepath.Join(t.TempDir(), "b.tar.gz")
	b.kubectl(t, "-n", suite, "create", "secret", "generic", "bundle", "--from-literal=token="+secretWord)
	t.Cleanup(func() { b.kubectlAfter(t, "-n", suite, "delete", "secret", "bundle") })
	dump := b.path("test/machines/dgx-h100.json")
	if out, code := cli.run(t, "support-bundle", "--node", b.Node(), "--machine", dump, "--file", file); code != 0 ||
		!strings.Contains(out, " 0 parts left out") {
		t.Errorf("exit %d: %s", code, out)
	}
	files, err := exec.CommandContext(t.Context(), "tar", "-tzf", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	plugin := b.pods(t, b.plugin)[0].Name
	wanted := []string{
		"machine.json", "doctor.txt", "node.json", "bindings.json", "nodetopology.json", "config/cluster-config",
		"events-node.json", "events-daemons.json", "events-pods.json", "logs/" + plugin + ".log",
		"logs/" + plugin + ".preload.log", "contents.json",
	}
	for _, want := range wanted {
		if !slices.Contains(strings.Split(string(files), "\n"), want) {
			t.Errorf("the bundle lacks %s:\n%s", want, files)
		}
	}
	text, err := exec.CommandContext(t.Context(), "tar", "-xzOf", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	if pod := b.kubectl(t, "-n", suite, "get", "deploy", topoMasterName, "-o", "yaml"); !strings.Contains(pod, envWord) {
		t.Errorf("topo-master has no such environment:\n%s", pod)
	}
	for _, secret := range []string{envWord, secretWord} {
		if strings.Contains(string(text), secret) {
			t.Errorf("the bundle has %s", secret)
		}
	}
	machine, _ := cli.run(t, "inspect", "--machine", dump, "--node-name", b.Node(), "-o", "json")
	if replayed, _ := cli.run(t, "inspect", "--bundle", file, "-o", "json"); replayed != machine {
		t.Errorf("the bundle's machine (-read +replayed):\n%s", cmp.Diff(machine, replayed))
	}
	// The configuration shares the GPUs, as the bundle has it.
	if out, _ := cli.run(t, "inspect", "--bundle", file, "-o", "resources"); !strings.Contains(out, "nvidia.com/sgpu") {
		t.Errorf("resources by the bundle's configuration:\n%s", out)
	}
}
