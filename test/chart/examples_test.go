package chart

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Examples are what the API server takes, and their node labels are ours.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(root + "/deploy/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	all := rendered{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains([]string{"volcano-scheduler-conf.yaml", "mpijob-nccl-auto.yaml"}, filepath.Base(file)) {
			continue // No object: the tests of heddle-vc-scheduler read it; TestDocumentedMPIJobs.
		}
		if slices.Contains([]string{"label-rules.yaml", "sgpu-nodes.yaml"}, filepath.Base(file)) {
			checkConfig(t, get[*corev1.ConfigMap](t, render(t, "-f", file), "ConfigMap/heddle-device-config"))
			continue
		}
		objects := decode(t, string(text))
		if filepath.Base(file) == "gpu-pod.yaml" { // It has the name that people know, as sgpu-pod.yaml has.
			pod := get[*corev1.Pod](t, objects, "Pod/sample-pod")
			if _, ok := pod.Spec.Containers[0].Resources.Limits[corev1.ResourceName(wellknown.DefaultDomains().GPUResource())]; !ok || pod.Spec.SchedulerName != "" {
				t.Errorf("%s asks for no GPU, or names a scheduler", file)
			}
			continue
		}
		maps.Copy(all, objects)
	}
	want := []string{
		"ConfigMap/heddle-device-config", "Deployment/chat", "Deployment/inference-deployment", "Deployment/nginx", "Deployment/sgpu-plain",
		"Job/first-gang", "Job/job-1", "Job/job-demo", "Job/mpi-job", "Job/pytorch-demo", "Job/train", "Job/training-job", "MPIJob/nccl-test", "Pod/first-pod", "Pod/gpu-rdma", "Pod/sample-pod", "Pod/sgpu-best-effort", "Pod/sgpu-burst",
		"PodGroup/nginx", "Queue/test", "Service/inference-service", "Service/train", "StatefulSet/gang-example", "StatefulSet/gang-example1",
		"StatefulSet/gang-example2", "StatefulSet/gang-labels", "TFJob/tf-smoke-gpu",
	}
	if diff := gocmp.Diff(want, slices.Sorted(maps.Keys(all))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	checkConfig(t, get[*corev1.ConfigMap](t, all, "ConfigMap/heddle-device-config"))
	limits := get[*corev1.Pod](t, all, "Pod/gpu-rdma").Spec.Containers[0].Resources.Limits
	for _, key := range []string{wellknown.DefaultDomains().GPUResource(), wellknown.RDMAResource} {
		if _, ok := limits[corev1.ResourceName(key)]; !ok {
			t.Errorf("the pod with GPUs and HCAs asks for no %s", key)
		}
	}
	for id, want := range map[string]quota.Request{
		"Pod/sample-pod":       {GPUs: 1, VCore: 60, MemoryMiB: 4 << 10, Policy: quota.FixedShare},
		"Pod/sgpu-burst":       {GPUs: 1, VCore: 50, MemoryMiB: 20 << 10, Policy: quota.BurstShare},
		"Pod/sgpu-best-effort": {GPUs: 1, MemoryMiB: 8 << 10, Policy: quota.BestEffort},
	} {
		pod := get[*corev1.Pod](t, all, id)
		checkShare(t, id, pod.Spec, pod.Annotations, want)
	}
	plain := get[*appsv1.Deployment](t, all, "Deployment/sgpu-plain").Spec.Template
	checkShare(t, "Deployment/sgpu-plain", plain.Spec, plain.Annotations,
		quota.Request{GPUs: 1, VCore: 30, MemoryMiB: 10 << 10, Policy: quota.FixedShare})
	if name := get[*corev1.Pod](t, all, "Pod/sample-pod").Spec.SchedulerName; name != hami.SchedulerName {
		t.Errorf("the pod for HAMi is of scheduler %q", name)
	}
	checkPool(t, "training", get[*batchv1.Job](t, all, "Job/training-job").Spec.Template.Spec)
	checkPool(t, "inference", get[*appsv1.Deployment](t, all, "Deployment/inference-deployment").Spec.Template.Spec)
}

// TestDocumentedMPIJobs: the NCCL test without a list of HCAs is the documented one but for that option.
func TestDocumentedMPIJobs(t *testing.T) {
	var jobs []any
	for _, name := range []string{"mpijob-nccl.yaml", "mpijob-nccl-auto.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "deploy/examples", name))
		if err != nil {
			t.Fatal(err)
		}
		lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
			return name == "mpijob-nccl.yaml" && strings.HasPrefix(strings.TrimSpace(line), "-x NCCL_IB_HCA=")
		})
		jobs = append(jobs, decode(t, strings.Join(lines, "\n"))["MPIJob/nccl-test"])
	}
	if diff := gocmp.Diff(jobs[0], jobs[1]); diff != "" || jobs[0] == nil {
		t.Errorf("(-documented +without a list):\n%s", diff)
	}
}

// The examples of other makers ask for that maker's resources and name no other maker's; MetaX's are
// the documented ones with MetaX's keys.
func TestExamplesOfOtherMakers(t *testing.T) {
	for folder, maker := range map[string]string{"amd": "amd.com", "metax": "metax-tech.com"} {
		files, err := filepath.Glob(filepath.Join(root, "deploy/examples", folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no examples in %s: %v", folder, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), maker) || strings.Contains(strings.ToLower(string(text)), "nvidia") {
				t.Errorf("%s has no key of %s, or one of NVIDIA", file, maker)
			}
			for id, o := range decode(t, string(text)) {
				m, ok := o.(*corev1.ConfigMap)
				if !ok {
					continue
				}
				if want := map[string]string{"amd": "heddle", "metax": "metax"}[folder]; id != "ConfigMap/"+want+"-device-config" {
					t.Errorf("%s: %s", file, id)
				}
				checkConfig(t, m)
			}
		}
	}
}

// checkShare compares what the node makes of a pod with its example.
func checkShare(t *testing.T, id string, pod corev1.PodSpec, annotations map[string]string, want quota.Request) {
	t.Helper()
	c := config.Default()
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	got, err := quota.ParseRequest(pod.Containers[0].Resources.Limits, annotations, &c)
	if diff := gocmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%s: error %v (-want +got):\n%s", id, err, diff)
	}
}

func checkConfig(t *testing.T, m *corev1.ConfigMap) {
	t.Helper()
	files := map[string][]byte{}
	for key, text := range m.Data {
		files[key] = []byte(text)
	}
	if _, err := config.Parse(files, &rule.CEL{}); err != nil {
		t.Errorf("%v\n%s", err, m.Data)
	}
}

func checkPool(t *testing.T, usage string, pod corev1.PodSpec) {
	t.Helper()
	key := wellknown.DefaultDomains().Usage()
	in := func(values ...string) []corev1.NodeSelectorRequirement {
		return []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}}
	}
	want := &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: in(usage, "hybrid")}},
		},
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: in(usage)}},
		},
	}
	if diff := gocmp.Diff(want, pod.Affinity.NodeAffinity); diff != "" {
		t.Errorf("%s (-want +got):\n%s", usage, diff)
	}
	var tolerated []string
	for _, toleration := range pod.Tolerations {
		tolerated = append(tolerated, toleration.Key+"="+toleration.Value)
	}
	wantTolerated := []string{key + "=" + usage, key + "=hybrid", wellknown.DefaultDomains().Product() + "=NVIDIA-H20"}
	if diff := gocmp.Diff(wantTolerated, tolerated); diff != "" {
		t.Errorf("%s (-want +got):\n%s", usage, diff)
	}
}
