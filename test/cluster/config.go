//go:build linux

package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
)

// Addresses of the node. They exist in its private network namespace only, so all
// clusters use the same ones.
const (
	nodeIP     = "10.99.0.1"
	serviceIP  = "10.96.0.1"
	serviceNet = "10.96.0.0/24"
	podNet     = "10.244.0.0/24"
)

// nodeName is the real node.
const nodeName = "node1"

// containerdSocket is containerd's address on the node.
const containerdSocket = "/run/containerd/containerd.sock"

// kubeletConfig is the KubeletConfiguration, with the caller's fields on top.
func kubeletConfig(dir, socket, cgroupRoot string, extra map[string]any, gates map[string]bool) ([]byte, error) {
	type m = map[string]any
	config := m{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": nodeIP, "port": 10250, "readOnlyPort": 0,
		"healthzBindAddress": "127.0.0.1", "healthzPort": 10248,
		"authentication": m{
			"anonymous": m{"enabled": false}, "webhook": m{"enabled": true},
			"x509": m{"clientCAFile": filepath.Join(dir, "pki", "ca.crt")},
		},
		"authorization":            m{"mode": "Webhook"},
		"containerRuntimeEndpoint": "unix://" + socket,
		"cgroupDriver":             "cgroupfs", // No systemd.
		// The kubelet removes pod cgroups that it does not know below its root.
		"cgroupRoot":             cgroupRoot,
		"failCgroupV1":           false, // True by default since 1.35.
		"failSwapOn":             false,
		"enforceNodeAllocatable": []string{"pods"},
		// The disk is the developer's: fill it as far as it goes rather than evict.
		"evictionHard": m{
			"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%",
		},
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		"maxPods":                   110,
		"nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "10s", "syncFrequency": "10s",
		"clusterDNS": []string{"10.96.0.10"}, "clusterDomain": "cluster.local",
		// The host's may be a link into /run, which the node does not share.
		"resolvConf":             filepath.Join(dir, "resolv.conf"),
		"volumePluginDir":        "/var/lib/kubelet/volume-plugins",
		"makeIPTablesUtilChains": false,
		"logging":                m{"verbosity": 2},
	}
	if len(gates) > 0 {
		config["featureGates"] = gates
	}
	merge(config, extra)
	data, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode kubelet configuration: %w", err)
	}
	return append(data, '\n'), nil
}

// merge lays src over dst: objects field by field, anything else whole.
func merge(dst, src map[string]any) {
	for key, value := range src {
		to, ok1 := dst[key].(map[string]any)
		from, ok2 := value.(map[string]any)
		if ok1 && ok2 {
			to = maps.Clone(to)
			merge(to, from)
			value = to
		}
		dst[key] = value
	}
}

// containerdConfig is containerd's configuration, version 3 of its format.
func containerdConfig(dir, runc, cniPlugins string) []byte {
	return []byte(strings.NewReplacer(
		"@ROOT@", filepath.Join(dir, "containerd"),
		"@STATE@", "/run/containerd",
		"@SOCKET@", containerdSocket,
		"@PAUSE@", PauseImage,
		"@RUNC@", runc,
		"@CNI_BIN@", cniPlugins,
		"@CNI_CONF@", filepath.Join(dir, "cni"),
	).Replace(containerdTemplate))
}

// restrict_oom_score_adj: without CAP_SYS_RESOURCE, which small virtual machines
// withhold from root, runc cannot lower oom_score_adj and every sandbox fails.
const containerdTemplate = `version = 3
root = "@ROOT@"
state = "@STATE@"
imports = []
disabled_plugins = [
  "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.differ.v1.erofs",
]
[grpc]
  address = "@SOCKET@"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "@PAUSE@"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "@RUNC@"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["@CNI_BIN@"]
    conf_dir = "@CNI_CONF@"
`

// cniConfig puts pods on a bridge. Their default route leads to the bridge's
// address, on the node, where the API server's service address is local too.
func cniConfig() []byte {
	return []byte(`{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
    "ipam": {
      "type": "host-local", "dataDir": "/run/cni-ipam",
      "ranges": [[{"subnet": "` + podNet + `"}]], "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}
`)
}
