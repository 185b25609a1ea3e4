package supportbundle_test

import (
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/inspect"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/supportbundle"
	"github.com/heddle-dev/heddle/test/clitest"
)

const dump = "../../../../test/machines/dgx-h100.json"

// written runs the command and unpacks what it wrote.
func written(t *testing.T, args ...string) (files map[string][]byte, dir string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	if _, _, err := clitest.Run(t, supportbundle.NewCommand("v1"), append(args, "--file", path)...); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", path, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files = map[string][]byte{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[name], err = os.ReadFile(filepath.Join(dir, name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, dir
}

// The machine comes back as it was, with the configuration that goes with it.
func TestReplay(t *testing.T) {
	files, dir := written(t, "--machine", dump)
	want := []string{"contents.json", "doctor.txt", "machine.json"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if !strings.Contains(string(files["doctor.txt"]), "dgx-h100: 0 problems") || !strings.Contains(string(files["contents.json"]), `"heddle": "v1"`) {
		t.Errorf("%s\n%s", files["doctor.txt"], files["contents.json"])
	}
	for _, format := range []string{"json", "labels", "table"} {
		direct, _, err := clitest.Run(t, inspect.NewCommand(), "--machine", dump, "-o", format)
		if err != nil {
			t.Fatal(err)
		}
		replayed, _, err := clitest.Run(t, inspect.NewCommand(), "--machine", filepath.Join(dir, "machine.json"), "-o", format)
		if diff := cmp.Diff(direct, replayed); diff != "" || err != nil {
			t.Errorf("-o %s, %v (-machine +unpacked):\n%s", format, err, diff)
		}
	}
}

// Of a Node there is what the API server gives, without credentials, and a note for
// the rest.
func TestNode(t *testing.T) {
	answers := map[string]string{
		"/api/v1/nodes/gpu-1": `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "gpu-1", "labels": {"a": "b"}}}`,
		"/api/v1/namespaces/heddle-system/configmaps/heddle-device-config": `{"kind": "ConfigMap", "apiVersion": "v1",
			"data": {"version": "v1", "cluster-config": "topology: {clusterManager: 'https://me:secret1@x/'}\n"}}`,
		"/api/v1/namespaces/heddle-system/configmaps/metax-device-config": `{"kind": "ConfigMap", "apiVersion": "v1", "data": {"nodes-config": "[]"}}`,
		"/api/v1/namespaces/heddle-system/pods": `{"kind": "PodList", "apiVersion": "v1", "items": [
			{"metadata": {"name": "plugin", "namespace": "heddle-system"}, "spec": {"nodeName": "gpu-1",
				"containers": [{"name": "c", "env": [{"name": "WORD", "value": "secret3"}]}]},
				"status": {"initContainerStatuses": [{"name": "preload"}], "containerStatuses": [{"name": "c"}]}},
			{"metadata": {"name": "heddle-scheduler-1", "namespace": "heddle-system", "labels": {"app.kubernetes.io/name": "heddle-scheduler"}},
				"spec": {"nodeName": "gpu-2", "volumes": [{"name": "config", "configMap": {"name": "mine"}}]}},
			{"metadata": {"name": "elsewhere", "namespace": "heddle-system"}, "spec": {"nodeName": "gpu-2"},
				"status": {"containerStatuses": [{"name": "c"}]}}]}`,
		"/api/v1/namespaces/heddle-system/configmaps/mine": `{"kind": "ConfigMap", "apiVersion": "v1", "data": {"config.yaml": "kind: x\n"}}`,
		"/api/v1/events": `{"kind": "EventList", "apiVersion": "v1", "items": [
			{"reason": "SGPURejected", "type": "Warning", "message": "node is full", "count": 2, "source": {"host": "gpu-1"},
				"involvedObject": {"kind": "Pod", "namespace": "team", "name": "train-0"}},
			{"reason": "SGPURejected", "source": {"host": "gpu-2"}, "involvedObject": {"kind": "Pod", "namespace": "team", "name": "train-1"}}]}`,
		"/api/v1/namespaces/heddle-system/pods/plugin/log": "started token=secret2\n",
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusForbidden)
			answer = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}`
		}
		if _, err := w.Write([]byte(answer)); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	config := clitest.Kubeconfig(t, server.URL)
	files, _ := written(t, "--kubeconfig", config, "--node", "gpu-1")
	want := []string{
		"config/cluster-config", "config/nodes-config", "config/version", "contents.json", "events-pods.json", "logs/plugin.log",
		"logs/plugin.preload.log", "node.json", "scheduler/config.yaml",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	events := strings.Join(strings.Fields(string(files["events-pods.json"])), " ")
	if diff := cmp.Diff(`[ { "namespace": "team", "pod": "train-0", "type": "Warning", "reason": "SGPURejected", "message": "node is full", `+
		`"count": 2, "last": null } ]`, events); diff != "" {
		t.Errorf("Events of pods (-want +got):\n%s", diff)
	}
	for name, content := range files {
		if strings.Contains(string(content), "secret") {
			t.Errorf("%s has a credential: %s", name, content)
		}
	}
	for _, lacks := range []string{"bindings.json", "nodetopology.json", "events-node.json"} {
		if !strings.Contains(string(files["contents.json"]), lacks) {
			t.Errorf("contents.json does not show that %s could not be had: %s", lacks, files["contents.json"])
		}
	}
}
