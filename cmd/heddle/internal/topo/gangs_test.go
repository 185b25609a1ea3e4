package topo

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

func TestGangs(t *testing.T) {
	many := snapshot.Gangs{}
	for i := range 5 {
		many.Gangs = append(many.Gangs, snapshot.Gang{Namespace: "ai", Name: fmt.Sprint("g", i), State: gang.Running, Nodes: []string{"n1"}})
	}
	far := snapshot.Gang{Namespace: "ai", Name: "far", State: gang.Starting, Since: longAgo}
	for i := range 20 {
		far.Nodes = append(far.Nodes, fmt.Sprintf("node%d-rack%d", i, i*i))
	}
	const sum = "\n3 nodes: 2 ready, 1 degraded, 0 not ready; GPUs: 5 of 16, 2 not offered; 4 findings, see heddle topo miscabled; 1 report not believed\n"
	const stale = "STALE: topo-master has received nothing from the API server for 10d\n"
	const all = `NAMESPACE  NAME  API              STATE    PODS     GPUS  GROUP        NODES         AGE  WHY
ai         big   Volcano          Queued   0 of 18  144   -            -             10d  rejected by podgroup ai/big: 2 of 18 fit, for 10d
ai         tf    PodGroup         Running  2 of 2   8     dragonfly-1  n[1-2]        10d
zoo        wide  LeaderWorkerSet  Unknown  0 of 3   3     -            cpu1,gone,n1       1 pod on a lost node
` + stale
	wideNodes := export.Hostlist(far.Nodes)
	for _, tt := range []struct {
		name  string
		gangs snapshot.Gangs
		args  []string
		want  string
	}{
		{"all", sampleGangs(), []string{"gangs"}, all},
		{"a list of nodes that is too long", snapshot.Gangs{Gangs: []snapshot.Gang{far}}, []string{"gangs"}, `NAMESPACE  NAME  API  STATE     PODS    GPUS  GROUP  NODES  AGE  WHY
ai         far   -    Starting  0 of 0  0     -      20     10d
`},
		{"of one namespace", sampleGangs(), []string{"gangs", "-n", "zoo"}, `NAMESPACE  NAME  API              STATE    PODS    GPUS  GROUP  NODES         AGE  WHY
zoo        wide  LeaderWorkerSet  Unknown  0 of 3  3     -      cpu1,gone,n1       1 pod on a lost node
` + stale},
		{"of all namespaces, with all nodes", snapshot.Gangs{Gangs: []snapshot.Gang{far}}, []string{"gangs", "-o", "wide"}, "NAMESPACE  NAME  API  STATE     PODS    GPUS  GROUP  NODES" +
			strings.Repeat(" ", len(wideNodes)-3) + "AGE  WHY\n" +
			"ai         far   -    Starting  0 of 0  0     -      " + wideNodes + "  10d\n"},
		{"none", snapshot.Gangs{Gangs: []snapshot.Gang{}}, []string{"gangs"}, "No pod is in a gang.\n"},
		{"in the tree", sampleGangs(), nil, `NAME         KIND       STATUS    NODES  FREE GPUS  GANGS                           WHY
cpu1         node       Ready                       zoo/wide
dragonfly-1  dragonfly  Degraded  2      5 of 16    ai/tf, zoo/wide (1 of 3 nodes)
  n1         node       Degraded         5 of 8     ai/tf, zoo/wide                 stale for 10d, 2 miscabled
  n2         node       Ready            0 of 8     ai/tf                           cordoned
` + sum + stale},
		{"many on one node", many, []string{"tree", "--groups"}, `NAME         KIND       STATUS    NODES  FREE GPUS  GANGS                            WHY
dragonfly-1  dragonfly  Degraded  2      5 of 16    ai/g0, ai/g1, ai/g2, and 2 more
` + sum + stale},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, _, err := clitest.Run(t, NewCommand(), append(tt.args, "--topo-master", serverWith(t, sample(), tt.gangs).URL)...)
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(tt.want, out); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}
