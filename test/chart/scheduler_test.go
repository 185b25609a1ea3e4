package chart

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/heddle-dev/heddle/topo/master/httpapi"
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
		objects := render(t, append(args, "--set", "gpuScheduler.deploy=true", "--set", "topoDiscovery.deploy=true")...)
		config := get[*corev1.ConfigMap](t, objects, "ConfigMap/"+schedulerName).Data["scheduler.yaml"]
		if diff := cmp.Diff(read(string(text)), read(config)); diff != "" {
			t.Errorf("%s (-documented +chart):\n%s", file, diff)
		}
	}
}

// TestSchedulerKnowsEveryMaker: with auto the scheduler itself expands the names.
func TestSchedulerKnowsEveryMaker(t *testing.T) {
	objects := render(t, "--set", "gpuScheduler.deploy=true", "--set", "config.cluster.domains.vendor=auto")
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
		"--set", "gpuScheduler.deploy=true,gpuScheduler.assign=gpu-pods", "--set-json",
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
	objects := render(t, "--set", "gpuScheduler.deploy=true", "--set-json",
		`gpuScheduler={"gpuAware":{"weight":1,"loss.weight":0.5},"clientConnection":{"qps":62.5,"burst":125}}`)
	config := get[*corev1.ConfigMap](t, objects, "ConfigMap/"+schedulerName).Data["scheduler.yaml"]
	for _, want := range []string{`gpuAware: {"loss.weight":0.5,"weight":1}`, `clientConnection: {"burst":125,"qps":62.5}`} {
		if !strings.Contains(config, want) {
			t.Errorf("no %s in\n%s", want, config)
		}
	}
}

// The gates, and the admission of a native gang's pods without GPUs: all of its
// pods must have one scheduler.
func TestGenericWorkload(t *testing.T) {
	const gates = "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
	for _, on := range []bool{false, true} {
		args := append(append([]string{
			"--set", "gpuScheduler.deploy=true,gpuScheduler.assign=gpu-pods,gpuScheduler.genericWorkload=" + strconv.FormatBool(on),
		}, mutating...), podGroups...)
		objects := render(t, args...)
		d := get[*appsv1.Deployment](t, objects, "Deployment/"+schedulerName)
		if got := slices.Contains(d.Spec.Template.Spec.Containers[0].Args, gates); got != on {
			t.Errorf("with genericWorkload=%t the scheduler runs with %v", on, d.Spec.Template.Spec.Containers[0].Args)
		}
		p := get[*admissionv1.MutatingAdmissionPolicy](t, objects, "MutatingAdmissionPolicy/"+schedulerName)
		if got := strings.Contains(p.Spec.MatchConditions[2].Expression, "|| has(object.spec.schedulingGroup)"); got != on {
			t.Errorf("with genericWorkload=%t: %s", on, p.Spec.MatchConditions[2].Expression)
		}
	}
	_, err := helm(t, "template", generated, chartDir, "--set", "gpuScheduler.deploy=true,gpuScheduler.genericWorkload=true")
	if err == nil || !strings.Contains(err.Error(), "scheduling.k8s.io/v1beta1") {
		t.Errorf("without the API: %v", err)
	}
}

// Another configuration makes other pods, since kube-scheduler reads it once.
func TestSchedulerRollsWithItsConfiguration(t *testing.T) {
	const key = "heddle.dev/scheduler-config"
	sums := map[string]bool{}
	for _, set := range []string{"topoDiscovery.deploy=false", "topoDiscovery.deploy=true", "gpuScheduler.map.without=wait"} {
		d := get[*appsv1.Deployment](t, render(t, "--set", "gpuScheduler.deploy=true,"+set), "Deployment/"+schedulerName)
		sums[d.Spec.Template.Annotations[key]] = true
	}
	if len(sums) != 3 {
		t.Errorf("three configurations have the sums %v", sums)
	}
	objects := render(t, "--set", "gpuScheduler.deploy=true,gpuScheduler.existingConfigMap=mine")
	d := get[*appsv1.Deployment](t, objects, "Deployment/"+schedulerName)
	if got := d.Spec.Template.Spec.Volumes[0].ConfigMap.Name; got != "mine" || objects["ConfigMap/"+schedulerName] != nil {
		t.Errorf("it mounts %s; the chart's own: %v", got, objects["ConfigMap/"+schedulerName])
	}
}

// A topo-master that asks for tokens gets one that is good for nothing else, by a
// certificate that is judged by its authority.
func TestSchedulerAsksASecuredMaster(t *testing.T) {
	const secured = "gpuScheduler.deploy=true,topoDiscovery.deploy=true,topoDiscovery.master.tlsSecret=topo-tls"
	ca := corev1.VolumeProjection{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: "topo-tls"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
	}}
	selfSigned := *ca.DeepCopy()
	selfSigned.Secret.Items[0].Key = "tls.crt"
	token := corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
		Audience: httpapi.Audience, ExpirationSeconds: new(int64(3600)), Path: "token",
	}}
	for _, tt := range []struct {
		name, set string
		args      map[string]any
		volume    []corev1.VolumeProjection
		may       bool
	}{
		{
			name: "certificate and token", set: secured + ",topoDiscovery.master.authenticate=true",
			args: map[string]any{
				"topoMaster": "https://heddle-topo-master." + namespace + ".svc:9001/node_group",
				"caFile":     "/etc/heddle-topo-master/ca.crt", "tokenFile": "/etc/heddle-topo-master/token",
			},
			volume: []corev1.VolumeProjection{ca, token}, may: true,
		},
		{
			name: "a certificate of its own", set: secured + ",topoDiscovery.master.tlsAuthorityKey=tls.crt",
			args: map[string]any{
				"topoMaster": "https://heddle-topo-master." + namespace + ".svc:9001/node_group",
				"caFile":     "/etc/heddle-topo-master/ca.crt",
			},
			volume: []corev1.VolumeProjection{selfSigned},
		},
		{
			name: "another place", set: secured + ",gpuScheduler.map.address=http://elsewhere/node_group",
			args: map[string]any{"topoMaster": "http://elsewhere/node_group"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects := render(t, "--set", tt.set)
			var config struct {
				Profiles []struct {
					PluginConfig []struct {
						Name string
						Args map[string]any
					} `yaml:"pluginConfig"`
				}
			}
			if err := yaml.Unmarshal([]byte(get[*corev1.ConfigMap](t, objects, "ConfigMap/"+schedulerName).Data["scheduler.yaml"]), &config); err != nil {
				t.Fatal(err)
			}
			got := map[string]any{}
			for _, key := range []string{"topoMaster", "caFile", "tokenFile"} {
				if value, ok := config.Profiles[0].PluginConfig[0].Args[key]; ok {
					got[key] = value
				}
			}
			if diff := cmp.Diff(tt.args, got); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			pod := get[*appsv1.Deployment](t, objects, "Deployment/"+schedulerName).Spec.Template.Spec
			var volume []corev1.VolumeProjection
			for _, v := range pod.Volumes {
				if v.Projected != nil {
					volume = v.Projected.Sources
				}
			}
			if diff := cmp.Diff(tt.volume, volume); diff != "" || len(pod.Containers[0].VolumeMounts) != 1+min(len(tt.volume), 1) {
				t.Errorf("%d mounts, volume (-want +got):\n%s", len(pod.Containers[0].VolumeMounts), diff)
			}
			may := false
			for _, rule := range get[*rbacv1.ClusterRole](t, objects, "ClusterRole/"+schedulerName).Rules {
				may = may || cmp.Equal(rule, rbacv1.PolicyRule{NonResourceURLs: []string{"/node_group"}, Verbs: []string{"get"}})
			}
			if may != tt.may {
				t.Errorf("it may ask: %t", may)
			}
		})
	}
}

// People's PodGroups outlive the release.
func TestPodGroupsAreKept(t *testing.T) {
	objects := render(t, "--set", "gpuScheduler.deploy=true,gpuScheduler.podGroups={scheduling.x-k8s.io,scheduling.sigs.k8s.io}")
	for _, group := range []string{"scheduling.x-k8s.io", "scheduling.sigs.k8s.io"} {
		crd := get[map[string]any](t, objects, "CustomResourceDefinition/podgroups."+group)
		metadata, _ := crd["metadata"].(map[string]any)
		annotations, _ := metadata["annotations"].(map[string]any)
		if annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s goes with the release: %v", group, annotations)
		}
	}
}

// Who makes no PodGroups may write none.
func TestPodGroupsThatNobodyMakes(t *testing.T) {
	for _, groups := range []string{`[]`, `["scheduling.sigs.k8s.io"]`} {
		objects := render(t, "--set", "gpuScheduler.deploy=true", "--set-json", "gpuScheduler.podGroups="+groups)
		want := []rbacv1.PolicyRule{{
			APIGroups: []string{"scheduling.x-k8s.io", "scheduling.sigs.k8s.io"}, Resources: []string{"podgroups"}, Verbs: []string{"list", "watch"},
		}}
		rules := get[*rbacv1.ClusterRole](t, objects, "ClusterRole/"+schedulerName).Rules
		podGroups := slices.DeleteFunc(rules, func(r rbacv1.PolicyRule) bool { return !slices.Contains(r.Resources, "podgroups") })
		if diff := cmp.Diff(want, podGroups); diff != "" {
			t.Errorf("%s (-want +got):\n%s", groups, diff)
		}
		config := get[*corev1.ConfigMap](t, objects, "ConfigMap/"+schedulerName).Data["scheduler.yaml"]
		if !strings.Contains(config, "podGroups: false") {
			t.Errorf("%s, and its configuration makes some:\n%s", groups, config)
		}
	}
}

// The kinds of the Prometheus Operator are made on demand alone, and the alerts
// are of metrics that there are.
func TestSchedulerMonitoring(t *testing.T) {
	objects := render(t, "--set", "gpuScheduler.deploy=true")
	if objects["PrometheusRule/"+schedulerName] != nil || objects["ServiceMonitor/"+schedulerName] != nil {
		t.Error("made although it is off")
	}
	objects = render(t, "--set", "gpuScheduler.deploy=true,topoDiscovery.deploy=true,gpuScheduler.monitoring=true,gpuScheduler.monitoringLabels.release=prom")
	service := get[*corev1.Service](t, objects, "Service/"+schedulerName)
	pod := get[*appsv1.Deployment](t, objects, "Deployment/"+schedulerName).Spec.Template
	port := pod.Spec.Containers[0].Ports[0]
	if got := service.Spec.Ports[0]; got.TargetPort.StrVal != port.Name || got.Port != port.ContainerPort {
		t.Errorf("the Service has %v, the pod %v", got, port)
	}
	for key, value := range service.Spec.Selector {
		if pod.Labels[key] != value {
			t.Errorf("the Service wants %s=%s, the pods have %v", key, value, pod.Labels)
		}
	}
	source := goSource(t, root+"/topo/scheduler")
	rule, err := yaml.Marshal(get[map[string]any](t, objects, "PrometheusRule/"+schedulerName))
	if err != nil {
		t.Fatal(err)
	}
	metrics := regexp.MustCompile(`heddle_scheduler_(\w+)`).FindAllStringSubmatch(string(rule), -1)
	for _, m := range metrics {
		if !strings.Contains(source, `"`+m[1]+`",`) && !strings.Contains(source, `"`+m[0]+`",`) {
			t.Errorf("there is no metric %s", m[0])
		}
	}
	for _, want := range []string{"HeddleGangRejected", "> 1200", "HeddleMapTooOld", "{{ $labels.namespace }}/{{ $labels.podgroup }}", "release: prom"} {
		if !strings.Contains(string(rule), want) {
			t.Errorf("the rule lacks %q:\n%s", want, rule)
		}
	}
	objects = render(t, "--set", "gpuScheduler.deploy=true,gpuScheduler.monitoring=true")
	if rule, _ := yaml.Marshal(objects["PrometheusRule/"+schedulerName]); strings.Contains(string(rule), "HeddleMapTooOld") {
		t.Error("without a map none can be too old")
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
