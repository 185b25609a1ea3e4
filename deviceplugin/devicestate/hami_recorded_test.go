package devicestate

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/sharing/quota"
)

type recordedContainer struct {
	Name          string                         `json:"name"`
	RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
	Limits        map[string]string              `json:"limits"`
}

// recordedPod is what a user submitted, and what unmodified HAMi added.
type recordedPod struct {
	Name      string `json:"name"`
	Submitted struct {
		Annotations    map[string]string   `json:"annotations"`
		InitContainers []recordedContainer `json:"initContainers"`
		Containers     []recordedContainer `json:"containers"`
	} `json:"submitted"`
	Written struct {
		Annotations   map[string]string `json:"annotations"`
		SchedulerName string            `json:"schedulerName"`
		NodeName      string            `json:"nodeName"`
	} `json:"written"`
}

func recorded(t *testing.T, version string) []recordedPod {
	t.Helper()
	text, err := os.ReadFile("../../sharing/hami/testdata/recorded-" + version + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Pods []recordedPod `json:"pods"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all.Pods
}

func (c *recordedContainer) container() corev1.Container {
	limits := corev1.ResourceList{}
	for name, amount := range c.Limits {
		limits[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: corev1.ResourceRequirements{Limits: limits}}
}

// hamiRig is the recorded node.
func hamiRig(t *testing.T) *rig {
	t.Helper()
	r := shareRig(t)
	r.options.NodeName = "node1"
	r.restart()
	r.reconfigure(func(c *config.NodeConfig) { c.SGPU.HAMi.Enabled, c.SGPU.HAMi.SchedulerName = true, "hami-scheduler" })
	return r
}

// schedule makes a recorded pod known as HAMi bound it.
func (r *rig) schedule(p *recordedPod) {
	annotations := maps.Clone(p.Written.Annotations)
	maps.Copy(annotations, p.Submitted.Annotations)
	var containers []corev1.Container
	for i := range p.Submitted.Containers {
		containers = append(containers, p.Submitted.Containers[i].container())
	}
	known := r.wants(p.Name, annotations, containers...)
	known.Spec.NodeName, known.Spec.SchedulerName = p.Written.NodeName, p.Written.SchedulerName
	for i := range p.Submitted.InitContainers {
		known.Spec.InitContainers = append(known.Spec.InitContainers, p.Submitted.InitContainers[i].container())
	}
}

// TestRecordedHAMi: every container gets the GPUs and the amounts that unmodified
// HAMi recorded for it.
func TestRecordedHAMi(t *testing.T) {
	for _, version := range []string{"2.6.1", "2.10"} {
		for _, p := range recorded(t, version) {
			t.Run(version+"/"+p.Name, func(t *testing.T) {
				r := hamiRig(t)
				r.schedule(&p)
				var chosen allocation.HAMiPod
				_ = json.Unmarshal([]byte(p.Written.Annotations[wellknown.HAMiAllocation]), &chosen)
				next := 0
				for at, c := range p.Submitted.Containers {
					count := resource.MustParse("0")
					if n, ok := c.Limits[slots]; ok {
						count = resource.MustParse(n)
					}
					if count.IsZero() {
						continue
					}
					want := asks{}
					for range count.Value() {
						want[slots] = append(want[slots], r.slot(next, 0))
						next++
					}
					r.allocate(pod(p.Name), c.Name, want)
					err := r.prepareShares(want)
					if p.Name == "nvuse" { // HAMi does not read this spelling, and chose another GPU.
						if all := r.Rejections(); err == nil || len(all) != 1 || all[0].Kind != allocate.RejectedRequest {
							t.Errorf("error %v, rejections %+v", err, all)
						}
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					// App containers are last in every version.
					recorded := chosen[at+len(chosen)-len(p.Submitted.Containers)]
					var got, wanted []allocation.Share
					for _, b := range r.View().Allocations() {
						if b.Container == c.Name {
							got = append(got, b.Shares...)
						}
					}
					for _, s := range recorded {
						wanted = append(wanted, allocation.Share{UUID: s.UUID, VCore: int(s.Compute), MemoryMiB: int64(s.VRam)})
					}
					byUUID := func(a, b allocation.Share) int { return strings.Compare(a.UUID, b.UUID) }
					slices.SortFunc(got, byUUID)
					slices.SortFunc(wanted, byUUID)
					if diff := cmp.Diff(wanted, got); diff != "" {
						t.Errorf("container %s (-recorded +got):\n%s", c.Name, diff)
					}
				}
			})
		}
	}
}

// hamiPod is a pod of one container as HAMi binds it.
func hamiPod(name, uuid, share string, limits, annotations map[string]string) *recordedPod {
	p := &recordedPod{Name: name}
	p.Submitted.Annotations = annotations
	p.Submitted.Containers = []recordedContainer{{Name: "main", Limits: limits}}
	p.Written.NodeName, p.Written.SchedulerName = "node1", "hami-scheduler"
	p.Written.Annotations = map[string]string{
		wellknown.HAMiAllocation: `[[{"uuid":"` + uuid + `",` + share + `}]]`,
		wellknown.HAMiChosenTime: "1795223838", wellknown.HAMiNode: "node1", wellknown.HAMiBindTime: "1795223839",
	}
	return p
}

// TestHAMisRounding: sixteen containers that fill a GPU by HAMi's account fit.
func TestHAMisRounding(t *testing.T) {
	r := hamiRig(t)
	uuid := r.gpuIDs(0)[0]
	for i := range 16 {
		p := hamiPod("p"+string(rune('a'+i)), uuid, `"compute":5,"vRam":5097`,
			map[string]string{slots: "1", "nvidia.com/vcore": "5", "nvidia.com/vmemory": "5345M"}, nil)
		r.schedule(p)
		want := asks{slots: {r.slot(0, i)}}
		r.allocate(pod(p.Name), "main", want)
		if err := r.prepareShares(want); err != nil {
			t.Fatalf("container %d: %v", i+1, err)
		}
	}
	if g := r.nothingOvercommitted()[0]; g.UsedMiB != 16*5097 {
		t.Errorf("%d MiB are taken", g.UsedMiB)
	}
}

// TestHAMiWithoutPolicies: HAMi 2.6 sends a pod without a policy to a GPU with
// burst-share consumers. The pod takes theirs; one that wants another is rejected.
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
		r.schedule(hamiPod(tt.name, r.gpuIDs(0)[0], `"compute":30,"vRam":8192`, limits, tt.annotations))
		want := asks{slots: {r.slot(0, i)}}
		r.allocate(pod(tt.name), "main", want)
		if err := r.prepareShares(want); (err != nil) != tt.rejected {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if g := r.nothingOvercommitted()[0]; g.Policy != quota.BurstShare || g.Consumers != 2 {
		t.Errorf("GPU 0 has %d consumers of %s", g.Consumers, g.Policy)
	}
}
