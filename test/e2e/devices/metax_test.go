//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/heddle-dev/heddle/api/allocation"
)

// metaX is the configuration of a node of MetaX's GPUs.
const metaX = quickHealth + "domains: {vendor: metax-tech.com}\n"

// TestMetaX: the documented pods run with MetaX's keys on a replayed machine of eight
// C500. Two GPUs are two that MetaXLink joins, four are one group of it with its HCAs;
// the documented configuration turns the node to shares; the documented Job is for its
// taints. Nothing that the node or a pod shows is in the words of another maker.
func TestMetaX(t *testing.T) {
	r := newRig(t, options{name: "metax", machine: "metax-c500-box", config: metaX})
	r.waitAllocatable(t, "metax-tech.com/gpu", 8)
	r.waitAllocatable(t, hcaResource, 4*64)
	t.Run("gpu-pod", func(t *testing.T) { metaXWhole(t, r) })
	t.Run("device-config and sgpu-pod", func(t *testing.T) { metaXShares(t, r) })
	t.Run("node-pools", func(t *testing.T) { metaXPools(t, r) })
	if word := otherMaker(r.plugin.log.String()); word != "" {
		t.Errorf("the log has %q:\n%s", word, r.plugin.log)
	}
	if n := r.allocatable(t, gpuResource); n > 0 {
		t.Errorf("the node offers %d of %s", n, gpuResource)
	}
}

// otherMaker is a word of another maker in a text; empty if there is none.
func otherMaker(text string) string {
	return regexp.MustCompile(`(?i)nvidia|nvml|cuda|nvlink`).FindString(text)
}

// documented reads the first object of a file in deploy/examples.
func documented(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "examples", name))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n---\n")
	if err := yaml.Unmarshal([]byte(first), into); err != nil {
		t.Fatal(err)
	}
}

// atHand gives a documented pod the image that is at hand, and reports what it sees.
func (r *rig) atHand(p *corev1.Pod) *corev1.Pod {
	ours, c := r.pod(p.Name, box{}), &p.Spec.Containers[0]
	c.Image, c.Command, c.Args, c.VolumeMounts = reportImage, nil, nil, ours.Spec.Containers[0].VolumeMounts
	p.Namespace, p.Spec.Volumes, p.Spec.TerminationGracePeriodSeconds = namespace, ours.Spec.Volumes, new(int64(1))
	return p
}

// noOtherMaker fails the test where a container has an environment of another maker.
func noOtherMaker(t *testing.T, s *seen) {
	t.Helper()
	for key, value := range s.Env {
		if word := otherMaker(key + "=" + value); word != "" {
			t.Errorf("%s=%s", key, value)
		}
	}
}

func metaXWhole(t *testing.T, r *rig) {
	p := &corev1.Pod{}
	documented(t, "metax/gpu-pod.yaml", p)
	r.run(t, r.atHand(p))
	s := r.has(t, p.Name, p.Spec.Containers[0].Name, 2, 0)
	noOtherMaker(t, s)
	if a, b := r.index(t, s.GPUs[0])/4, r.index(t, s.GPUs[1])/4; a != b {
		t.Errorf("GPUs %v are of two groups", s.GPUs)
	}
	r.run(t, r.pod("four", box{hcas: 2, more: corev1.ResourceList{"metax-tech.com/gpu": quantity(4)}}))
	four := r.has(t, "four", "app", 4, 2)
	noOtherMaker(t, four)
	var groups []int
	for _, uuid := range four.GPUs {
		groups = append(groups, r.index(t, uuid)/4)
	}
	slices.Sort(groups)
	half := groups[0]
	want := []string{fmt.Sprintf("mlx5_%d", 2*half), fmt.Sprintf("mlx5_%d", 2*half+1)}
	if groups[3] != half || !slices.Equal(four.HCAs, want) {
		t.Errorf("GPUs of groups %v with HCAs %v, want one group and %v", groups, four.HCAs, want)
	}
	r.remove(t, p.Name, "four")
}

func metaXShares(t *testing.T, r *rig) {
	var example corev1.ConfigMap
	documented(t, "metax/device-config.yaml", &example)
	for name, text := range example.Data {
		text = strings.ReplaceAll(text, "sample-node1", r.Node())
		if name == "cluster-config" {
			text += quickHealth
		}
		if err := replaceFile(filepath.Join(r.dir, "config", name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int64{"gpu": 0, "sgpu": 8 * 16, "vcore": 8 * 100, "vmemory": 8 * 64} {
		r.waitAllocatable(t, "metax-tech.com/"+name, want)
	}
	p := &corev1.Pod{}
	documented(t, "metax/sgpu-pod.yaml", p)
	// HAMi is not here: then the example wants no name.
	p.Spec.SchedulerName = ""
	r.run(t, r.atHand(p))
	name := p.Spec.Containers[0].Name
	r.hasShares(t, p.Name, name, allocation.Share{VCore: 60, MemoryMiB: 4096})
	noOtherMaker(t, r.sees(t, p.Name, name))
	r.remove(t, p.Name)
}

func metaXPools(t *testing.T, r *rig) {
	if err := r.writeConfig(quickHealth + "preset: scheme\nusage: training\ndomains: {company: maip.mxsf.io}\n"); err != nil {
		t.Fatal(err)
	}
	labeler := r.another(t, program(t, nodeProgram), labelerDaemon,
		"--node-name", r.Node(), "--machine", r.machineFile(), "--config", filepath.Join(r.dir, "config"))
	if err := labeler.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		n := r.node(t)
		if len(n.Spec.Taints) != 2 || n.Labels["metax-tech.com/gpu.product"] != "MXC500" {
			return fmt.Sprintf("taints %v, labels %v\n%s", n.Spec.Taints, n.Labels, tail(labeler.log.String(), 2000))
		}
		return ""
	})
	n := r.node(t)
	for key, value := range n.Labels {
		if word := otherMaker(key + "=" + value); word != "" {
			t.Errorf("label %s=%s", key, value)
		}
	}
	if word := otherMaker(labeler.log.String()); word != "" {
		t.Errorf("the log of heddle-feature-discovery has %q:\n%s", word, labeler.log)
	}
	var job struct {
		Spec struct {
			Tasks []struct{ Template corev1.PodTemplateSpec }
		}
	}
	documented(t, "metax/training-job.yaml", &job)
	p := &corev1.Pod{Spec: job.Spec.Tasks[0].Template.Spec} // TestVolcano has it from Volcano's controller.
	p.Name = "training-job"
	r.run(t, r.atHand(p))
	r.remove(t, p.Name)
}
