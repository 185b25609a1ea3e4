package allocate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/hamirecord"
)

// hamiRig is the recorded node.
func hamiRig(t *testing.T) *rig {
	t.Helper()
	r := shareRig(t, func(c *config.NodeConfig) { c.SGPU.HAMi = config.HAMiOn })
	r.name = hamirecord.Node
	return r
}

// hamiPod is a pod of one container as HAMi binds it.
func hamiPod(name, uuid, share string, limits, annotations map[string]string) *corev1.Pod {
	p := hamirecord.Pod{Name: name}
	p.Submitted.Annotations = annotations
	p.Submitted.Containers = []hamirecord.Container{{Name: "main", Limits: limits}}
	p.Written.NodeName, p.Written.SchedulerName = hamirecord.Node, "hami-scheduler"
	p.Written.Annotations = map[string]string{
		wellknown.HAMiAllocation: `[[{"uuid":"` + uuid + `",` + share + `}]]`,
		wellknown.HAMiChosenTime: "1795223838", wellknown.HAMiNode: hamirecord.Node, wellknown.HAMiBindTime: "1795223839",
	}
	return p.Bound()
}

// Sixteen containers that fill a GPU by HAMi's account fit.
func TestHAMisRounding(t *testing.T) {
	r := hamiRig(t)
	limits := map[string]string{slots: "1", "nvidia.com/vcore": "5", "nvidia.com/vmemory": "5345M"}
	for i := range 16 {
		name := "p" + itoa(i)
		r.known[name] = hamiPod(name, r.uuid(0), `"compute":5,"vRam":5097`, limits, nil)
		r.allocate(name, "main", slots, r.slot(0, i))
		r.mustStart(name)
	}
	if g := r.nothingOvercommitted()[0]; g.UsedMiB != 16*5097 {
		t.Errorf("%d MiB are taken", g.UsedMiB)
	}
}

// HAMi 2.6 sends a pod without a policy to a GPU with burst-share consumers. The pod
// takes theirs; one that wants another is rejected.
func TestHAMiWithoutPolicies(t *testing.T) {
	const key = "metax-tech.com/sgpu-qos-policy"
	r := hamiRig(t)
	limits := map[string]string{slots: "1", "nvidia.com/vcore": "30", "nvidia.com/vmemory": "8"}
	for i, tt := range []struct {
		name        string
		annotations map[string]string
		rejected    bool
	}{
		{"burst", map[string]string{key: "burst-share"}, false},
		{"default", nil, false},
		{"fixed", map[string]string{key: "fixed-share"}, true},
	} {
		r.known[tt.name] = hamiPod(tt.name, r.uuid(0), `"compute":30,"vRam":8192`, limits, tt.annotations)
		r.allocate(tt.name, "main", slots, r.slot(0, i))
		if _, err := r.start(tt.name, "main"); (err != nil) != tt.rejected {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if g := r.nothingOvercommitted()[0]; g.Policy != quota.BurstShare || g.Consumers != 2 {
		t.Errorf("GPU 0 has %d consumers of %s", g.Consumers, g.Policy)
	}
}
