//go:build e2e && linux

package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// TestFabricCondition shows a wrong cable to kubectl: it waits for the condition of
// the Node and of the NodeTopology, prints the columns and the Events, and all
// of it ends when the cable is mended. heddle doctor names the cable.
func TestFabricCondition(t *testing.T) {
	b := shared(t)
	b.topologyCRD(t)
	reports := map[string]*v1alpha1.NodeTopology{}
	for i := range 8 {
		node := fmt.Sprintf("cable-%d", i)
		b.newNode(t, node, nil)
		nt := reportOf(node, b.node(t, node).UID, "")
		nt.Spec.Accelerators = []v1alpha1.Accelerator{{Product: "NVIDIA-H100", Count: 8}} // Others have no expectations.
		rail := nt.Spec.Rails[0]
		nt.Spec.Rails = nil
		for r := range int32(4) {
			rail.Rail, rail.HCA, rail.ID = r, fmt.Sprint("mlx5_", r), fmt.Sprintf("0000:1%d:00.0", r)
			rail.SwitchPort = fmt.Sprint(i + 1)
			rail.Switch = &v1alpha1.Switch{ID: fmt.Sprintf("a00000000000%d%d01", i/4, r), Name: fmt.Sprintf("leaf-%c-rail%d", 'a'+i/4, r)}
			nt.Spec.Rails = append(nt.Spec.Rails, rail)
		}
		reports[node] = nt
		b.report(t, nt)
	}
	m := b.startTopoMaster(t, "cables", 19404, "--exports", "conditions", "--mode", "leaf")
	const node, other = "cable-1", "cable-2"
	wait := func(what, status string) {
		t.Helper()
		b.kubectl(t, "wait", "--for=condition=HeddleFabric="+status, what, "--timeout=3m")
	}
	wait("node/"+node, "True")
	wait("node/"+other, "True")
	wait("nodetopology/"+node, "True")

	wrong := reports[node].DeepCopy()
	wrong.Spec.Rails[2].Switch, wrong.Spec.Rails[2].SwitchPort = reports["cable-5"].Spec.Rails[2].Switch, "40"
	wrong.Spec.Rails[2].Counters = &v1alpha1.Counters{SymbolErrors: 5, LinkDowns: 2, Time: metav1.Now()}
	b.report(t, wrong)
	wait("node/"+node, "False")
	wait("nodetopology/"+node, "False")
	const sentence = "mlx5_2 port 1 (rail 2) is on leaf-b-rail2 port 40, expected leaf-a-rail2"
	message := b.kubectl(t, "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="HeddleFabric")].reason}: {.status.conditions[?(@.type=="HeddleFabric")].message}`)
	if message != "CableMisplaced: "+sentence {
		t.Errorf("condition %q", message)
	}
	for name, want := range map[string][]string{node: {"4/4", "1"}, other: {"4/4", "0"}} {
		columns := strings.Fields(b.kubectl(t, "get", "nt", name, "--no-headers"))
		if len(columns) < 6 || !strings.HasPrefix(columns[3], "leaf-") || columns[4] != want[0] || columns[5] != want[1] {
			t.Errorf("columns of %s: %q", name, columns)
		}
	}
	if wide := b.kubectl(t, "get", "nt", node, "-o", "wide"); !strings.Contains(wide, sentence) {
		t.Errorf("wide: %s", wide)
	}
	_, _, body := m.get(t, "/v1/ports?switch=leaf-b-rail2&port=40")
	for _, want := range []string{`"node":"` + node + `"`, `"counters":{"symbolErrors":5,"linkDowns":2,`, `"kind":"miscabled"`} {
		if !strings.Contains(body, want) || strings.Count(body, `"node":`) != 2 { // The port's, and its finding's.
			t.Errorf("who is on the switch port: no %s in %s", want, body)
		}
	}
	doctor, err := b.installer.Build(t.Context(), "heddle")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), doctor, "doctor", "--node", node, "--kubeconfig", b.Kubeconfig())
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "HeddleFabric: CableMisplaced: "+sentence) {
		t.Errorf("doctor: %v\n%s", err, out)
	}

	b.report(t, reports[node])
	wait("node/"+node, "True")
	eventually(t, func() string {
		events := b.kubectl(t, "get", "events", "-n", "default", "--field-selector", "involvedObject.kind=Node,involvedObject.name="+node, "-o",
			`jsonpath={range .items[*]}{.type} {.reason} {.source.component}{"\n"}{end}`)
		for _, want := range []string{
			corev1.EventTypeWarning + " CableMisplaced heddle-topo-master\n", corev1.EventTypeNormal + " CableRecovered heddle-topo-master\n",
		} {
			if strings.Count(events, want) != 1 {
				return "Events:\n" + events
			}
		}
		return ""
	})
	// The page's history of the cable is these Events.
	eventually(t, func() string {
		_, _, body := m.get(t, "/v1/nodes/"+node)
		recovered, found := strings.Index(body, `"reason":"CableRecovered"`), strings.Index(body, `"reason":"CableMisplaced"`)
		if recovered < 0 || found < recovered {
			return "changes of the cable, the newest first:\n" + body
		}
		return ""
	})
	if described := b.kubectl(t, "describe", "node", node); !strings.Contains(described, sentence) {
		t.Errorf("kubectl describe node shows no Event about the cable:\n%s", described)
	}
}
