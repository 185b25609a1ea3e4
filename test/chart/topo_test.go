package chart

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	topoWorker = "heddle-topo-worker"
	topoMaster = "heddle-topo-master"
)

func renderTopo(t *testing.T, args ...string) rendered {
	t.Helper()
	return render(t, append([]string{"--set", "topoDiscovery.enabled=true"}, args...)...)
}

// The command of other suites, whose `echo` puts a newline into user and
// password before base64 does its work.
func TestClusterManager(t *testing.T) {
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	objects := renderTopo(t, "--set", "topoDiscovery.mode=switchbox",
		"--set", "topoDiscovery.master.env[0].name=CLIENT_GO_QPS", "--set-string", "topoDiscovery.master.env[0].value=100",
		"--set", "topoDiscovery.master.env[1].name=CLIENT_GO_BRUST", "--set-string", "topoDiscovery.master.env[1].value=100",
		"--set", "topoDiscovery.switchbox.clusterManagerAddress=https://127.0.0.1",
		"--set", "topoDiscovery.switchbox.clusterManagerUser="+encode("metax\n"),
		"--set", "topoDiscovery.switchbox.clusterManagerPassword="+encode("test\n"))
	secret := get[*corev1.Secret](t, objects, "Secret/heddle-cluster-manager")
	// The worker drops the newline: TestQuestion in topo/worker/clustermanager.
	want := map[string][]byte{"user": []byte("metax\n"), "password": []byte("test\n")}
	if diff := cmp.Diff(want, secret.Data); diff != "" {
		t.Errorf("Secret (-want +got):\n%s", diff)
	}
	config := get[*corev1.ConfigMap](t, objects, "ConfigMap/heddle-device-config")
	checkConfig(t, config)
	const wantConfig = "mode: native\ntopology:\n  clusterManager: https://127.0.0.1\n  mode: switchbox\n"
	if diff := cmp.Diff(wantConfig, config.Data["cluster-config"]); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	env := get[*appsv1.Deployment](t, objects, "Deployment/"+topoMaster).Spec.Template.Spec.Containers[0].Env
	wantEnv := []corev1.EnvVar{{Name: "CLIENT_GO_QPS", Value: "100"}, {Name: "CLIENT_GO_BRUST", Value: "100"}}
	if diff := cmp.Diff(wantEnv, env[len(env)-2:]); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	for name, object := range objects {
		if config, ok := object.(*corev1.ConfigMap); ok && strings.Contains(config.Data["cluster-config"], "dGVzdA") {
			t.Errorf("%s has the password", name)
		}
	}
}

// The values of topoDiscovery add to what stands in config.cluster.
func TestTopologyOfTheConfiguration(t *testing.T) {
	objects := renderTopo(t, "--set", "config.cluster.topology.nodeNumber=4", "--set", "topoDiscovery.mode=dragonfly",
		"--set", "topoDiscovery.switchbox.clusterManagerAddress=https://manager.example.com/groups")
	config := get[*corev1.ConfigMap](t, objects, "ConfigMap/heddle-device-config")
	checkConfig(t, config)
	const want = "mode: native\ntopology:\n  clusterManager: https://manager.example.com/groups\n" +
		"  mode: dragonfly\n  nodeNumber: 4\n"
	if diff := cmp.Diff(want, config.Data["cluster-config"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
