package doctor

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/config"
)

// schedulerConfig is the documented configuration, shortened; mineConfig is
// one in which the default scheduler has the plugin.
const (
	schedulerConfig = `kind: KubeSchedulerConfiguration
profiles:
- schedulerName: heddle-scheduler
  plugins: {multiPoint: {enabled: [{name: Heddle, weight: 2}]}, bind: {enabled: [{name: Heddle}]}}
`
	mineConfig = `profiles:
- plugins: {multiPoint: {enabled: [{name: Heddle}]}}
- schedulerName: plain
`
)

func TestOtherSchedulers(t *testing.T) {
	asks := func(namespace, name, scheduler, resourceName string) corev1.Pod {
		return pod(namespace, name, func(p *corev1.Pod) {
			p.Spec.SchedulerName = scheduler
			if resourceName != "" {
				p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
					Limits: corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse("1")},
				}}}
			}
		})
	}
	runs := func(from string) corev1.Pod {
		return pod("heddle-system", "s", func(p *corev1.Pod) {
			p.Labels = map[string]string{"app.kubernetes.io/name": "heddle-scheduler"}
			p.Spec.Volumes = []corev1.Volume{
				{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
				{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: from},
				}}},
			}
		})
	}
	const gpu = "nvidia.com/gpu"
	own, other := asks("ml", "a", "heddle-scheduler", gpu), asks("ml", "b", "default-scheduler", gpu)
	done, static := asks("ml", "done", "default-scheduler", gpu), asks("ml", "static", "default-scheduler", gpu)
	done.Status.Phase = corev1.PodSucceeded
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	first := asks("ml", "init", "volcano", "nvidia.com/mig-1g.10gb")
	first.Spec.InitContainers, first.Spec.Containers = first.Spec.Containers, nil
	many := []corev1.Pod{own}
	for i := range 7 {
		many = append(many, asks("ml", fmt.Sprintf("b-%d", i), "", gpu))
	}
	const do = "  -> Let one scheduler have the GPU nodes: spec.schedulerName: heddle-scheduler, or gpuScheduler.assign=gpu-pods in the chart."
	for _, tt := range []struct {
		name  string
		pods  []corev1.Pod
		where []corev1.Pod
		want  []string
	}{
		{"all are its own", []corev1.Pod{own, asks("kube-system", "dns", "default-scheduler", "")}, []corev1.Pod{runs("heddle-scheduler")}, nil},
		{"it does not run", []corev1.Pod{own, other}, nil, nil},
		{"both on one node", []corev1.Pod{own, other, done, static}, []corev1.Pod{runs("heddle-scheduler")}, []string{
			"problem  heddle-scheduler", "  another scheduler bound 1 pod with GPUs here: default-scheduler: ml/b", do,
		}},
		{"none is its own", []corev1.Pod{other, first}, []corev1.Pod{runs("heddle-scheduler")}, []string{
			"note  heddle-scheduler", "  another scheduler bound 2 pods with GPUs here: default-scheduler: ml/b; volcano: ml/init", do,
		}},
		{"a share of a GPU", []corev1.Pod{asks("ml", "s", "hami-scheduler", "nvidia.com/sgpu")}, []corev1.Pod{runs("heddle-scheduler")}, []string{
			"note  heddle-scheduler", "  another scheduler bound 1 pod with GPUs here: hami-scheduler: ml/s", do,
		}},
		{"many", many, []corev1.Pod{runs("heddle-scheduler")}, []string{
			"problem  heddle-scheduler",
			"  another scheduler bound 7 pods with GPUs here: default-scheduler: ml/b-0, ml/b-1, ml/b-2, ml/b-3, ml/b-4 and 2 more", do,
		}},
		{"it is the default scheduler", []corev1.Pod{other, own}, []corev1.Pod{runs("mine")}, []string{
			"problem  heddle-scheduler", "  another scheduler bound 1 pod with GPUs here: heddle-scheduler: ml/a",
			strings.ReplaceAll(do, ": heddle-scheduler,", ": default-scheduler,"),
		}},
		{"its configuration cannot be read", []corev1.Pod{other}, []corev1.Pod{runs("broken")}, []string{
			"note  heddle-scheduler", "  another scheduler bound 1 pod with GPUs here: default-scheduler: ml/b", do,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := h20Node()
			node.Labels = nil
			dir := directory(t, map[string]string{"version": "v1"})
			out, _ := doctor(t, "--node", "gpu-1", "--config", dir, "--kubeconfig", serve(t, node, tt.pods, tt.where...))
			var got []string
			lines := strings.Split(out, "\n")
			for i, line := range lines {
				if strings.HasSuffix(line, "  heddle-scheduler") {
					got = lines[i : i+3]
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s\nof\n%s", diff, out)
			}
		})
	}
}

// The documented configuration is read as what it is.
func TestDocumentedProfiles(t *testing.T) {
	text, err := os.ReadFile("../../../heddle-scheduler/testdata/scheduler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"heddle-scheduler"}, profiles(text)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := profiles([]byte("profiles: [{schedulerName: x}]")); got != nil {
		t.Errorf("without the plugin: %v", got)
	}
}

// A pod with vcore or vmemory and no share of a GPU is named: it takes what pods with shares need.
func TestTokens(t *testing.T) {
	holds := func(name string, limits ...string) corev1.Pod {
		return pod("ml", name, func(p *corev1.Pod) {
			list := corev1.ResourceList{}
			for _, l := range limits {
				list[corev1.ResourceName(l)] = resource.MustParse("60")
			}
			p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: list}}}
		})
	}
	c, l := config.Default(), Findings{}
	ended := holds("ended", "nvidia.com/vcore")
	ended.Status.Phase = corev1.PodSucceeded
	checkTokens(&l, []corev1.Pod{
		holds("share", "nvidia.com/sgpu", "nvidia.com/vcore"), holds("cpu", "cpu"), ended, holds("idle", "nvidia.com/vcore", "nvidia.com/vmemory"),
	}, &c)
	if len(l) != 1 || l[0].Subject != "pod ml/idle" || l[0].Level != Problem || l[0].Message != "container main holds 60 nvidia.com/vcore "+
		"and 60 nvidia.com/vmemory without a GPU: containers with shares do not get them" {
		t.Errorf("%+v", l)
	}
}
