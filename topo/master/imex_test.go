package master_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/publish"
)

// Each clique has one pool of channels for its nodes; a clique without nodes has none any more.
func TestChannelsOfCliques(t *testing.T) {
	c := newCluster(t, apiserver.Kind{APIVersion: "resource.k8s.io/v1", Name: "ResourceSlice", Plural: "resourceslices"})
	in := func(name, clique string) {
		c.report(name, c.node(name, true), v1alpha1.NodeTopologySpec{NVLinkDomain: clique}, time.Time{})
	}
	long := strings.Repeat("x", 64) // It cannot be the value of a label.
	in("n1", "a84f.1")
	in("n2", "a84f.1")
	in("n3", "a84f.2")
	in("n4", long)
	r := c.replica(t, fabric.ModeAuto)
	r.until(t, "four reports", reports(4))
	exports := publish.Exports{IMEX: true, CliqueLabel: "nvidia.com/gpu.clique"}
	stop := c.lead(t, r, exports)
	are := func(want ...string) func() bool {
		return func() bool { return slices.Equal(c.Names("resourceslices"), want) }
	}
	eventually(t, "a pool for each clique", are("heddle-imex-a84f.1", "heddle-imex-a84f.2"))
	var s resourceapi.ResourceSlice
	c.Read("resourceslices", "", "heddle-imex-a84f.1", &s)
	clique, number, ok := claims.ParseChannel(s.Spec.Pool.Name, s.Spec.Devices[127].Name)
	of := s.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0]
	if !ok || clique != "a84f.1" || number != 128 || len(s.Spec.Devices) != 128 || of.Key != exports.CliqueLabel || of.Values[0] != clique {
		t.Errorf("pool of clique %q with channel %d: %+v", clique, number, s.Spec.NodeSelector)
	}
	before := c.Requests("PATCH", "resourceslices")
	in("n3", "a84f.1")
	eventually(t, "the empty clique's pool is gone", are("heddle-imex-a84f.1"))
	if after := c.Requests("PATCH", "resourceslices"); after != before {
		t.Errorf("%d writes for nothing", after-before)
	}
	stop()
	c.lead(t, r, publish.Exports{})
	eventually(t, "no pool without the export", are())
}
