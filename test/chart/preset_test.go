package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// serve is the label of the nodes that heddle serves with the preset.
const serve = "heddle.dev/serve"

// With the preset, the daemons with a session leave a node while gpu-operator has
// paused them; they need none of its labels. The question is the one that the
// DaemonSet controller asks.
func TestGPUOperatorPreset(t *testing.T) {
	objects := renderDevice(t, "-f", chartDir+"/presets/gpu-operator.yaml")
	for name, key := range map[string]string{
		devicePlugin:               "nvidia.com/gpu.deploy.device-plugin",
		"heddle-feature-discovery": "nvidia.com/gpu.deploy.gpu-feature-discovery",
	} {
		pod := &corev1.Pod{Spec: get[*appsv1.DaemonSet](t, objects, "DaemonSet/"+name).Spec.Template.Spec}
		wants := nodeaffinity.GetRequiredNodeAffinity(pod)
		for _, tt := range []struct {
			labels map[string]string
			runs   bool
		}{
			{map[string]string{}, true},
			{map[string]string{serve: ""}, false},
			{map[string]string{key: "true"}, true},
			{map[string]string{key: "false"}, true},
			{map[string]string{key: "paused-for-driver-upgrade"}, false},
			{map[string]string{key: "paused-for-mig-change"}, false},
			{map[string]string{key: "paused-for-mig-change_paused-for-driver-upgrade"}, false},
			// Another operand of gpu-operator is paused.
			{map[string]string{"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}, true},
		} {
			tt.labels["kubernetes.io/os"] = "linux"
			if _, ok := tt.labels[serve]; !ok {
				tt.labels[serve] = "true"
			}
			runs, err := wants.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: tt.labels}})
			if err != nil || runs != tt.runs {
				t.Errorf("%s on a node with %v: %t, %v, want %t", name, tt.labels, runs, err, tt.runs)
			}
		}
	}
}

// Argo CD and Flux render the chart by the values of the examples; for Argo CD nothing is in it that the cluster
// or a hook has a part in.
func TestGitOps(t *testing.T) {
	for file, preset := range map[string]string{"argocd": chartDir + "/presets/argocd.yaml", "flux": ""} {
		text, err := os.ReadFile(root + "/deploy/examples/gitops/" + file + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]any{}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var o struct {
				Kind string
				Spec struct {
					Values map[string]any
					Source struct {
						TargetRevision string
						Helm           struct {
							ValueFiles   []string
							ValuesObject map[string]any
						}
					}
				}
			}
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				t.Fatal(err)
			}
			if o.Kind == "Application" && !slices.Equal(o.Spec.Source.Helm.ValueFiles, []string{"presets/argocd.yaml"}) {
				t.Errorf("value files %q", o.Spec.Source.Helm.ValueFiles)
			}
			maps.Copy(values, o.Spec.Values)
			maps.Copy(values, o.Spec.Source.Helm.ValuesObject)
		}
		own := filepath.Join(t.TempDir(), "values.yaml")
		if text, err = json.Marshal(values); err != nil || len(values) == 0 {
			t.Fatal(values, err)
		}
		if err := os.WriteFile(own, text, 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"template", "heddle", chartDir, "-n", namespace, "--set", "gpuScheduler.enabled=true", "-f", own}
		if preset != "" {
			args = slices.Insert(args, 5, "-f", preset)
		}
		out, err := helm(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"pre-delete", "kind: CustomResourceDefinition"} {
			if strings.Contains(out, word) != (preset == "") {
				t.Errorf("%s: %q in the objects", file, word)
			}
		}
		if !strings.Contains(out, "image: DOMAIN/PROJECT/heddle-node:") {
			t.Errorf("%s: no image of the registry", file)
		}
	}
}
