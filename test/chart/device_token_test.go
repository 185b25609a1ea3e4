package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

const metricsReader = "ClusterRole/heddle-metrics-reader"

// A client that asks for what names pods needs a token, which takes two rights of the daemon and a
// role for others. Open to all it takes none.
func TestDeviceTokens(t *testing.T) {
	reviews := func(objects rendered) (all []string) {
		for _, r := range get[*rbacv1.ClusterRole](t, objects, "ClusterRole/"+devicePlugin).Rules {
			if strings.HasPrefix(r.APIGroups[0], "auth") {
				all = append(all, r.APIGroups[0]+" "+strings.Join(r.Resources, " ")+" "+strings.Join(r.Verbs, " "))
			}
		}
		return all
	}
	for _, tt := range []struct {
		name, sets string
		open       bool
	}{
		{"the default", "gpuDevice.deploy=true", false},
		{"open", "gpuDevice.authenticate=false", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects := renderDevice(t, "--set", tt.sets)
			if args := devicePod(t, objects).Containers[0].Args; slices.Contains(args, "--authenticate=false") != tt.open {
				t.Errorf("arguments: %q", args)
			}
			want := []string{
				"authentication.k8s.io tokenreviews create", "authorization.k8s.io subjectaccessreviews create",
			}
			if tt.open {
				want = nil
			}
			if diff := cmp.Diff(want, reviews(objects)); diff != "" {
				t.Errorf("rights (-want +got):\n%s", diff)
			}
			if _, there := objects[metricsReader]; there == tt.open {
				t.Fatalf("%s: %t", metricsReader, there)
			}
			if tt.open {
				return
			}
			rules := []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics", "/v1/bindings"}, Verbs: []string{"get"}}}
			if diff := cmp.Diff(rules, get[*rbacv1.ClusterRole](t, objects, metricsReader).Rules); diff != "" {
				t.Errorf("%s (-want +got):\n%s", metricsReader, diff)
			}
			for id, object := range objects {
				if binding, ok := object.(*rbacv1.ClusterRoleBinding); ok && binding.RoleRef.Name == "heddle-metrics-reader" {
					t.Errorf("%s binds it", id)
				}
			}
		})
	}
}

// Prometheus sends the token to the daemon that asks for one, and to no other.
func TestMonitorsToken(t *testing.T) {
	const on = "monitoring.deploy=true,topoDiscovery.deploy=true"
	for sets, want := range map[string]map[string]any{
		on:                                    {},
		on + ",monitoring.tokenSecret.name=s": {devicePlugin: map[string]any{"name": "s", "key": "token"}},
	} {
		got := map[string]any{}
		for id, object := range renderDevice(t, "--set", sets) {
			name, ok := strings.CutPrefix(id, "PodMonitor/")
			if !ok {
				continue
			}
			endpoint := object.(map[string]any)["spec"].(map[string]any)["podMetricsEndpoints"].([]any)[0].(map[string]any)
			if authorization, ok := endpoint["authorization"].(map[string]any); ok {
				got[name] = authorization["credentials"]
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", sets, diff)
		}
	}
}
