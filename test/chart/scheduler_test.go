package chart

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const schedulerName = "heddle-scheduler"

// podGroups is what an API server with the gate GenericWorkload serves.
var podGroups = []string{"--api-versions", "scheduling.k8s.io/v1beta1/PodGroup"}

// mutating is what an API server from 1.36 on serves.
var mutating = []string{"--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"}

// The chart's configuration is the documented one, which cmd/heddle-scheduler
// holds against kube-scheduler's own validation.
func TestSchedulerConfiguration(t *testing.T) {
	read := func(text string) (object map[string]any) {
		t.Helper()
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		return object
	}
	for file, args := range map[string][]string{
		"scheduler.yaml":                  nil,
		"scheduler-generic-workload.yaml": append([]string{"--set", "gpuScheduler.genericWorkload=true"}, podGroups...),
	} {
		text, err := os.ReadFile(root + "/cmd/heddle-scheduler/testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		objects := render(t, append(args, "--set", "gpuScheduler.enabled=true", "--set", "topoDiscovery.enabled=true")...)
		config := get[*corev1.ConfigMap](t, objects, "ConfigMap/"+schedulerName).Data["scheduler.yaml"]
		if diff := cmp.Diff(read(string(text)), read(config)); diff != "" {
			t.Errorf("%s (-documented +chart):\n%s", file, diff)
		}
	}
}

// TestSchedulerKnowsEveryMaker: with auto the scheduler itself expands the names.
func TestSchedulerKnowsEveryMaker(t *testing.T) {
	objects := render(t, "--set", "gpuScheduler.enabled=true", "--set", "config.cluster.domains.vendor=auto")
	config := get[*corev1.ConfigMap](t, objects, "ConfigMap/"+schedulerName).Data["scheduler.yaml"]
	for _, want := range []string{`"vendor":"auto"`, "nvidia.com/vmemory, amd.com/vcore, amd.com/vmemory, metax-tech.com/vcore"} {
		if !strings.Contains(config, want) {
			t.Errorf("no %s in\n%s", want, config)
		}
	}
}

// TestSchedulerKnowsNames: the names and units of the cluster's section are the scheduler's too.
func TestSchedulerKnowsNames(t *testing.T) {
	objects := render(t, append([]string{
		"--set", "gpuScheduler.enabled=true,gpuScheduler.assign=gpu-pods", "--set-json",
		`config.cluster={"resources":{"sgpu":"nvidia.com/gpu","vcore":"nvidia.com/gpucores","vmemory":"nvidia.com/gpumem",` +
			`"vmemoryUnit":"MiB","vmemoryPercentage":"nvidia.com/gpumem-percentage"},"sgpu":{"defaults":{"vcore":0}}}`,
	}, mutating...)...)
	config := get[*corev1.ConfigMap](t, objects, "ConfigMap/"+schedulerName).Data["scheduler.yaml"]
	for _, want := range []string{
		`"vmemoryUnit":"MiB"`, `shareDefaults: {"vcore":0}`,
		"ignoredResources: [nvidia.com/gpucores, nvidia.com/gpumem, nvidia.com/gpumem-percentage]",
	} {
		if !strings.Contains(config, want) {
			t.Errorf("no %s in\n%s", want, config)
		}
	}
	p := get[*admissionv1.MutatingAdmissionPolicy](t, objects, "MutatingAdmissionPolicy/"+schedulerName)
	// A pod with a GPU of its own is heddle-scheduler's too.
	if want := "['nvidia.com/gpu', 'nvidia.com/gpu.exclusive', 'nvidia.com/gpucores', 'nvidia.com/gpumem', 'nvidia.com/gpumem-percentage']"; !strings.Contains(
		p.Spec.MatchConditions[2].Expression, want) {
		t.Errorf("no %s in %s", want, p.Spec.MatchConditions[2].Expression)
	}
}

// Values that are no whole numbers, and the limits of requests, arrive as they are.
func TestSchedulerWeightsAndRates(t *testing.T) {
	objects := render(t, "--set", "gpuScheduler.enabled=true", "--set-json",
		`gpuScheduler={"gpuAware":{"weight":1,"loss.weight":0.5}}`)
	config := get[*corev1.ConfigMap](t, objects, "ConfigMap/"+schedulerName).Data["scheduler.yaml"]
	for _, want := range []string{`gpuAware: {"loss.weight":0.5,"weight":1}`} {
		if !strings.Contains(config, want) {
			t.Errorf("no %s in\n%s", want, config)
		}
	}
}

// Another configuration makes other pods, since kube-scheduler reads it once.
func TestSchedulerRollsWithItsConfiguration(t *testing.T) {
	const key = "heddle.dev/scheduler-config"
	sums := map[string]bool{}
	for _, set := range []string{"topoDiscovery.enabled=false", "topoDiscovery.enabled=true", "gpuScheduler.map.without=wait"} {
		d := get[*appsv1.Deployment](t, render(t, "--set", "gpuScheduler.enabled=true,"+set), "Deployment/"+schedulerName)
		sums[d.Spec.Template.Annotations[key]] = true
	}
	if len(sums) != 3 {
		t.Errorf("three configurations have the sums %v", sums)
	}
	objects := render(t, "--set", "gpuScheduler.enabled=true,gpuScheduler.existingConfigMap=mine")
	d := get[*appsv1.Deployment](t, objects, "Deployment/"+schedulerName)
	if got := d.Spec.Template.Spec.Volumes[0].ConfigMap.Name; got != "mine" || objects["ConfigMap/"+schedulerName] != nil {
		t.Errorf("it mounts %s; the chart's own: %v", got, objects["ConfigMap/"+schedulerName])
	}
}

// People's PodGroups outlive the release.
func TestPodGroupsAreKept(t *testing.T) {
	objects := render(t, "--set", "gpuScheduler.enabled=true,gpuScheduler.podGroups={scheduling.x-k8s.io,scheduling.sigs.k8s.io}")
	for _, group := range []string{"scheduling.x-k8s.io", "scheduling.sigs.k8s.io"} {
		crd := get[map[string]any](t, objects, "CustomResourceDefinition/podgroups."+group)
		metadata, _ := crd["metadata"].(map[string]any)
		annotations, _ := metadata["annotations"].(map[string]any)
		if annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s goes with the release: %v", group, annotations)
		}
	}
}

// goSource is the production code below a folder.
func goSource(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
