package chart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
)

// One kube-scheduler runs on several minor versions, by flags; what was not run
// is rejected.
func TestSchedulerFlagsOfKubernetes(t *testing.T) {
	const withoutDRA = "--feature-gates=" +
		"DynamicResourceAllocation=false,DRASchedulerFilterTimeout=false,DRAPrioritizedList=false,DRAAdminAccess=false"
	const deploy = "gpuScheduler.enabled=true"
	for _, tt := range []struct {
		server, set string
		flags       []string
		rejected    string
	}{
		{server: "1.31.14", flags: []string{"--emulated-version=1.34", withoutDRA}},
		{server: "1.34.5+k3s1", flags: []string{"--emulated-version=1.34"}},
		{server: "1.35.0", flags: []string{"--emulated-version=1.35"}},
		{server: "1.36.2-eks-abc", flags: []string{"--emulated-version=1.36"}},
		{server: "1.37.0"},
		{server: "1.37.0", set: ",gpuScheduler.kubernetesVersion=1.34", flags: []string{"--emulated-version=1.34"}},
		{server: "1.32.2", set: ",gpuScheduler.kubernetesVersion=1.33", flags: []string{"--emulated-version=1.34", withoutDRA}},
		{server: "1.32.2", rejected: "has not been run against Kubernetes 1.32: gpuScheduler.kubernetesVersion=1.33"},
		{server: "1.33.4", flags: []string{"--emulated-version=1.34", withoutDRA}},
		{server: "1.38.0", rejected: "has not been run against Kubernetes 1.38: gpuScheduler.kubernetesVersion=1.37"},
		{server: "1.36.0", set: ",gpuScheduler.genericWorkload=true", rejected: "genericWorkload needs Kubernetes 1.37, and the API server is 1.36"},
		{server: "1.37.0", set: ",gpuScheduler.kubernetesVersion=v2", rejected: "kubernetesVersion"},
		{server: "1.30.9", rejected: "chart requires kubeVersion: >=1.31.0-0"},
	} {
		t.Run(tt.server+tt.set, func(t *testing.T) {
			args := []string{"--kube-version", tt.server, "--set", deploy + tt.set}
			if tt.rejected != "" {
				_, err := helm(t, append([]string{"template", generated, chartDir}, args...)...)
				if err == nil || !strings.Contains(err.Error(), tt.rejected) {
					t.Errorf("error %v, want %q", err, tt.rejected)
				}
				return
			}
			var flags []string
			for _, arg := range get[*appsv1.Deployment](t, render(t, args...), "Deployment/"+schedulerName).Spec.Template.Spec.Containers[0].Args {
				if strings.HasPrefix(arg, "--emulated-version") || strings.HasPrefix(arg, "--feature-gates") {
					flags = append(flags, arg)
				}
			}
			if diff := cmp.Diff(tt.flags, flags); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The daemons on the nodes ask for nothing that a minor version lacks, whatever a distribution adds to its name.
func TestNodesTakeAnyKubernetes(t *testing.T) {
	for _, version := range []string{"1.33.4", "v1.31.9-eks-5d4a308", "v1.34.1+k3s1", "v1.36.4+rke2r1", "1.37.0-aliyun.1", "v1.33.5-gke.1"} {
		render(t, "--kube-version", version, "--set", "gpuDevice.enabled=true,topoDiscovery.enabled=true")
	}
	for _, version := range []string{"v1.30.5-gke.1443001", "v1.29.9-gke.1"} {
		_, err := helm(t, "template", generated, chartDir, "--kube-version", version)
		if err == nil || !strings.Contains(err.Error(), "chart requires kubeVersion: >=1.31.0-0") {
			t.Errorf("%s: %v", version, err)
		}
	}
}
