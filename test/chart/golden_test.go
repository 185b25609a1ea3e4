package chart

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// rendering is one that testdata has: its privileges, mounts, arguments and rights are
// read there.
type rendering struct {
	name string
	// templates are files below templates/, separated by blanks.
	templates, set string
	args           []string
}

// goldens render each template in every way that matters.
func goldens() []rendering {
	const (
		feature = "feature-discovery/daemonset.yaml"
		device  = "device-plugin/daemonset.yaml"
		worker  = "topo-worker/daemonset.yaml"
		master  = "topo-master/deployment.yaml topo-master/service.yaml topo-master/rbac.yaml"
		sched   = "scheduler/deployment.yaml scheduler/config.yaml scheduler/rbac.yaml"
	)
	return []rendering{
		{name: "feature-default", templates: feature + " feature-discovery/rbac.yaml"},
		{
			name: "feature-runtime", templates: feature,
			set: "image.repository=registry.example.com/gpu/,image.tag=v9,image.pullPolicy=Always,imagePullSecrets[0].name=pull," +
				"driver.access=runtime,driver.runtimeClassName=nvidia",
		},
		{
			name: "feature-replay", templates: feature,
			set: "gpuLabel.machineConfigMap=dgx,config.existingConfigMap=mine," +
				"gpuLabel.cleanup=true,gpuLabel.runAsRoot=true,gpuLabel.metricsPort=19101",
		},
		{name: "device-default", templates: device + " device-plugin/rbac.yaml device-plugin/withdrawn.yaml"},
		{
			name: "device-runtime", templates: device,
			set: "image.repository=registry.example.com/gpu/,image.tag=v9,imagePullSecrets[0].name=pull,driver.access=runtime," +
				"driver.runtimeClassName=nvidia,driver.root=/opt/nvidia/driver,gpuDevice.cdiHook=/usr/bin/nvidia-cdi-hook,gpuDevice.gdrcopy=true," +
				"gpuDevice.gds=true,gpuDevice.imexChannels=0,gpuDevice.kubeletDir=/data/kubelet," +
				"gpuDevice.cdiDir=/etc/cdi,gpuDevice.deviceListStrategy=envvar,gpuDevice.authenticate=false,gpuDevice.maxSurge=0",
		},
		{
			name: "device-replay", templates: device,
			set: "gpuDevice.machineConfigMap=dgx,gpuDevice.replayDevices=/run/replay," +
				"config.existingConfigMap=mine,gpuDevice.maxSurge=10%,gpuDevice.metricsPort=19102",
		},
		{
			name: "device-mps", templates: device + " mps/daemonset.yaml",
			set: "gpuDevice.mps=true,gpuDevice.usageMetrics=true,gpuDevice.seLinuxType=container_device_plugin_t",
		},
		{name: "mps-runtime", templates: "mps/daemonset.yaml", set: "gpuDevice.mps=true,driver.access=runtime"},
		{
			name: "device-preload", templates: device + " config.yaml",
			set: "gpuDevice.preload.image=registry.example.com/vgpu:1,gpuDevice.preload.path=/opt/libvgpu.so," +
				"driver.root=/opt/nvidia/driver,config.cluster.sgpu.slotsPerGPU=4",
		},
		{name: "topo-worker-default", templates: worker + " topo-worker/rbac.yaml"},
		{name: "topo-worker-ethernet", templates: worker, set: "topoDiscovery.worker.infiniband=false"},
		{
			name: "topo-worker-runtime", templates: worker,
			set: "driver.access=runtime,topoDiscovery.worker.infiniband=false,topoDiscovery.switchbox.existingSecret=manager," +
				"topoDiscovery.worker.staticConfigMap=racks,topoDiscovery.worker.mKeySecret=m-keys",
		},
		{
			name: "topo-worker-replay", templates: worker,
			set: "topoDiscovery.worker.machineConfigMap=dgx,topoDiscovery.worker.metricsPort=19103,topoDiscovery.worker.infiniband=false",
		},
		{name: "topo-master-default", templates: master},
		{
			name: "topo-master-secure", templates: master,
			set: "topoDiscovery.master.tlsSecret=topo-tls,topoDiscovery.master.authenticate=true," +
				"topoDiscovery.master.exports={labels,hypernode,kueue},topoDiscovery.mode=leaf,topoDiscovery.master.replicas=3",
		},
		{
			name: "topo-master-nothing-written", templates: master,
			args: []string{"--set-json", "topoDiscovery.master.exports=[]"},
		},
		{name: "scheduler-default", templates: sched},
		{
			name: "scheduler-assign", templates: sched + " scheduler/assign.yaml", args: mutating,
			set: "gpuScheduler.assign=gpu-pods,config.cluster.domains.vendor=metax-tech.com,gpuScheduler.replicas=1," +
				"gpuScheduler.map.without=wait,gpuScheduler.map.maxAge=1m",
		},
		{
			name: "scheduler-secure", templates: sched,
			set: "topoDiscovery.master.tlsSecret=topo-tls,topoDiscovery.master.authenticate=true,topoDiscovery.master.tlsAuthorityKey=tls.crt",
		},
		{name: "uninstall", templates: "uninstall/job.yaml uninstall/rbac.yaml", set: "uninstall.force=true,uninstall.crds=true"},
		{name: "test", templates: "tests/status.yaml", set: "uninstall.nodeSelector.pool=infra"},
		{
			name: "monitoring", templates: "monitoring/podmonitors.yaml scheduler/monitoring.yaml",
			set: "monitoring.enabled=true,gpuDevice.metricsPort=19102,monitoring.labels.release=prom,monitoring.tokenSecret.name=s",
		},
		{
			name: "network", templates: "networkpolicy.yaml budgets.yaml", set: "networkPolicy.enabled=true",
			args: []string{"--set-json", `networkPolicy.topoMasterFrom=[{"podSelector":{"matchLabels":{"app":"x"}}}]`},
		},
	}
}

// TestGoldens compares renderings with testdata, and the arguments of daemons with the flags
// of their programs.
func TestGoldens(t *testing.T) {
	for _, g := range goldens() {
		t.Run(g.name, func(t *testing.T) {
			args := append([]string{"--set", "topoDiscovery.enabled=true,gpuScheduler.enabled=true"}, g.args...)
			if g.set != "" {
				args = append(args, "--set", g.set)
			}
			for file := range strings.FieldsSeq(g.templates) {
				args = append(args, "-s", "templates/"+file)
			}
			for _, object := range renderGolden(t, g.name, args...) {
				switch o := object.(type) {
				case *appsv1.DaemonSet:
					checkFlags(t, o.Name, o.Spec.Template.Spec)
				case *appsv1.Deployment:
					if o.Name == topoMaster {
						checkFlags(t, o.Name, o.Spec.Template.Spec)
					}
				}
			}
		})
	}
}
