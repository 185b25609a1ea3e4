//go:build linux

package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Components, as named in Logs and in the state directory.
const (
	compHolder     = "holder"
	compForward    = "forward"
	compEtcd       = "etcd"
	compContainerd = "containerd"
	compCRIO       = "crio"
	compAPIServer  = "kube-apiserver"
	compKCM        = "kube-controller-manager"
	compScheduler  = "kube-scheduler"
	compKubelet    = "kubelet"
	compKwok       = "kwok"
)

// nodeLease is for how long a kubelet's lease lasts, and nodeGrace how much longer than that
// a node stays Ready that does not renew its own.
const (
	nodeLease = 40 * time.Second
	nodeGrace = 10 * time.Second
)

// components lists what a cluster runs, in the order of starting.
func (c *Cluster) components() []string {
	all := []string{
		compHolder, compForward, compEtcd, c.state.runtime(), compAPIServer, compKCM, compScheduler, compKubelet,
	}
	if c.state.Kwok {
		all = append(all, compKwok)
	}
	return all
}

// runtime is the component that runs containers.
func (s state) runtime() string {
	if s.CRIO != "" {
		return compCRIO
	}
	return compContainerd
}

// socket is its address on the node.
func (s state) socket() string {
	if s.CRIO != "" {
		return crioSocket
	}
	return containerdSocket
}

// command is the command line of a component that runs on the node.
func (s state) command(component string) []string {
	pki := func(name string) string { return filepath.Join(s.Dir, "pki", name) }
	args := []string{filepath.Join(s.Binaries.Kubernetes, component)}
	if older := filepath.Join(s.Older, component); s.Older != "" && isThere(older) {
		args[0] = older
	}
	lease := cmp.Or(s.NodeLease, nodeLease)
	if slices.Contains([]string{compAPIServer, compKCM, compScheduler}, component) && s.Emulated != "" {
		args = append(args, "--emulated-version="+s.Emulated)
	}
	switch component {
	case compEtcd:
		return append(args, etcdArgs(s.Dir)...)
	case compContainerd:
		return []string{
			filepath.Join(s.Binaries.Containerd, "containerd"), "-c", filepath.Join(s.Dir, "containerd.toml"),
		}
	case compCRIO:
		return []string{
			filepath.Join(s.CRIO, "crio"), "--config=" + filepath.Join(s.Dir, crioConfigFile), "--config-dir=",
		}
	case compAPIServer:
		args = append(append(args, apiserverArgs(pki)...), gateArgs(s.FeatureGates)...)
		return append(args, s.APIServerArgs...)
	case compKCM:
		args = append(args, controllerArgs(pki)...)
		args = append(args, "--node-monitor-grace-period="+(lease+nodeGrace).String())
	case compScheduler:
		args = append(args, loopbackClientArgs(pki(compScheduler+".kubeconfig"))...)
	case compKubelet:
		return append(args,
			"--config="+filepath.Join(s.Dir, "kubelet.json"), "--kubeconfig="+pki("kubelet.kubeconfig"),
			"--hostname-override="+nodeName, "--node-ip="+nodeIP, "--root-dir="+cmp.Or(s.RootDir, "/var/lib/kubelet"))
	case compKwok:
		return []string{
			s.Binaries.Kwok, "--config=" + filepath.Join(filepath.Dir(s.Binaries.Kwok), stagesFile),
			"--kubeconfig=" + pki("admin.kubeconfig"), "--manage-all-nodes=false",
			"--manage-nodes-with-annotation-selector=" + kwokAnnotation + "=fake",
			"--node-lease-duration-seconds=" + strconv.Itoa(int(lease.Seconds())), "--node-ip=" + nodeIP, "--cidr=10.128.0.1/16",
			"--server-address=127.0.0.1:10247",
		}
	}
	return append(args, gateArgs(s.FeatureGates)...)
}

func etcdArgs(dir string) []string {
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	return []string{
		"--name=node", "--data-dir=" + filepath.Join(dir, "etcd"), "--log-level=warn",
		"--unsafe-no-fsync", // The data lives as long as the cluster.
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=node=" + peer,
	}
}

// apiserverArgs: it listens on every address of the private namespace at port
// 443, and the service address is one of them. That makes in-cluster clients work
// without kube-proxy.
func apiserverArgs(pki func(string) string) []string {
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0", "--secure-port=443", "--advertise-address=" + nodeIP,
		"--service-cluster-ip-range=" + serviceNet,
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("sa.pub"), "--service-account-signing-key-file=" + pki("sa.key"),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--profiling=false", "--v=1",
	}
}

func controllerArgs(pki func(string) string) []string {
	args := loopbackClientArgs(pki(compKCM + ".kubeconfig"))
	return append(args,
		// At the default 20 queries per second it spends 4 s on making one client per
		// controller, before the first service account appears.
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--use-service-account-credentials", "--service-account-private-key-file="+pki("sa.key"),
		"--root-ca-file="+pki("ca.crt"),
		"--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key"))
}

func loopbackClientArgs(kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", "--leader-elect=false", "--v=1",
	}
}

func gateArgs(gates map[string]bool) []string {
	if len(gates) == 0 {
		return nil
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		pairs = append(pairs, fmt.Sprintf("%s=%t", name, gates[name]))
	}
	return []string{"--feature-gates=" + strings.Join(pairs, ",")}
}
