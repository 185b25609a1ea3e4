//go:build e2e && linux

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// replay makes the pods of a file in the API server, in its namespace. Their
// owners are ConfigMaps: the garbage collector takes the pods of owners that it does
// not find. No scheduler places them.
func (b *bed) replay(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := json.Unmarshal(text, &pods); err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for i := range pods.Items {
		for _, o := range pods.Items[i].OwnerReferences {
			owners[string(o.UID)] = o.Name
		}
	}
	for uid, name := range owners {
		owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if owner, err = b.client.CoreV1().ConfigMaps("ai").Create(t.Context(), owner, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		text = bytes.ReplaceAll(text, []byte(uid), []byte(owner.UID))
	}
	if err := json.Unmarshal(text, &pods); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Name == "alone" {
			continue // Its PodGroup has the UID that the pod had.
		}
		p.UID, p.CreationTimestamp, p.Spec.SchedulerName = "", metav1.Time{}, "none"
		for i := range p.OwnerReferences {
			o := &p.OwnerReferences[i]
			o.APIVersion, o.Kind = "v1", "ConfigMap"
		}
		status := p.Status
		if p, err = b.client.CoreV1().Pods("ai").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if p.Status = status; status.Phase == corev1.PodSucceeded {
			if _, err := b.client.CoreV1().Pods("ai").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Pods as every scheduler's and operator's controllers write them, in a real API
// server: topo-master and heddle topo gangs show each gang by its API.
func TestGangsOfEveryAPI(t *testing.T) {
	b := withGates(t)
	b.topologyCRD(t)
	b.kubectl(t, "create", "namespace", "ai")
	files, err := filepath.Glob(b.path("topo/gang/testdata/*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var want []string
	for _, file := range files {
		b.replay(t, file)
		golden, err := os.ReadFile(strings.TrimSuffix(file, "json") + "gangs")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(golden)) {
			if gang, _, ok := strings.Cut(line, ", "); ok && !strings.HasPrefix(gang, " ") {
				want = append(want, gang)
			}
		}
	}
	slices.Sort(want)
	m := b.startTopoMaster(t, "gangs", 19403, "--exports", "none")
	eventually(t, 30*time.Second, func() string {
		_, _, body := m.get(t, "/v1/gangs?namespace=ai")
		var all snapshot.Gangs
		if err := json.Unmarshal([]byte(body), &all); err != nil {
			return err.Error()
		}
		var got []string
		for _, g := range all.Gangs {
			got = append(got, g.Namespace+"/"+g.Name+"/"+string(g.API))
		}
		slices.Sort(got)
		return cmp.Diff(want, got)
	})
	heddle, err := b.installer.Build(t.Context(), "heddle")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), heddle, "topo", "gangs", "-n", "ai", "--server", m.url)
	cmd.Stdout, cmd.Stderr = &out, t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"ai         llama-workers       Kubernetes       Queued  0 of 2", "ai         sample-group        Kueue            Queued  0 of 2",
		"ai         vllm-0              LeaderWorkerSet  Queued  0 of 3",
	} {
		if !strings.Contains(out.String(), "\n"+line) {
			t.Errorf("no line %q in\n%s", line, &out)
		}
	}
}
