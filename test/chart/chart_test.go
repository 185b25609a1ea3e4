package chart

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// checkFlags holds the arguments of a pod against the flags of its program.
func checkFlags(t *testing.T, binary string, pod corev1.PodSpec) {
	t.Helper()
	checkArgs(t, binary, pod.Containers[0].Args)
}

func checkArgs(t *testing.T, binary string, args []string) {
	t.Helper()
	known := flagNames(t, binary)
	if daemon, own := strings.CutPrefix(binary, "heddle-"); own && len(args) > 0 && args[0] == daemon {
		args = args[1:]
	}
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !known[name] {
			t.Errorf("%s has no flag --%s", binary, name)
		}
	}
}

// flagNames reads the flags in the source of a program and in what it shares
// with the others: calls such as fs.StringVar(&x, "name", ...).
func flagNames(t *testing.T, binary string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	var paths []string
	daemon := strings.ReplaceAll(strings.TrimPrefix(binary, "heddle-"), "-", "")
	if daemon == "mps" {
		daemon = "deviceplugin"
	}
	for _, dir := range []string{binary, "internal/node/" + daemon, "internal/program"} {
		files, err := filepath.Glob(root + "/cmd/" + dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, files...)
	}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 3 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !strings.HasSuffix(method.Sel.Name, "Var") {
				return true
			}
			if literal, ok := call.Args[1].(*ast.BasicLit); ok {
				if name, err := strconv.Unquote(literal.Value); err == nil {
					found[name] = true
				}
			}
			return true
		})
	}
	if !found["log-level"] {
		t.Fatal("found no flags")
	}
	return found
}

// TestAliases: the names of values in MetaX's documents give the objects that the chart's own names give.
func TestAliases(t *testing.T) {
	var texts []string
	for _, set := range []string{
		"registry=DOMAIN/PROJECT,gpuScheduler.deploy=true,topoDiscovery.deploy=true",
		"image.repository=DOMAIN/PROJECT,gpuScheduler.enabled=true,topoDiscovery.enabled=true",
	} {
		text, err := helm(t, "template", generated, chartDir, "-n", namespace, "--set", set)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	if diff := cmp.Diff(texts[0], texts[1]); diff != "" || !strings.Contains(texts[0], "DOMAIN/PROJECT/heddle-scheduler:") {
		t.Errorf("(-alias +own name):\n%s", diff)
	}
}

func TestRejected(t *testing.T) {
	for _, tt := range []struct{ set, want string }{
		{"topoDiscovery.enabled=true,topoDiscovery.worker.metricsPort=9101", "gpuLabel.metricsPort and topoDiscovery.worker.metricsPort are both 9101"},
		{"topoDiscovery.switchbox.clusterManagerAddress=http://manager.example.com", "/topoDiscovery/switchbox/clusterManagerAddress"},
		{"topoDiscovery.switchbox.clusterManagerUser=me@example", "/topoDiscovery/switchbox/clusterManagerUser"},
		{"topoDiscovery.switchbox.clusterManagerUser=bWU=,topoDiscovery.switchbox.existingSecret=x", "give existingSecret, or user, password and authority"},
		{"topoDiscovery.enabled=true,topoDiscovery.master.authenticate=true", "a token must not travel in the clear"},
		{"topoDiscovery.enabled=true,topoDiscovery.master.exports[0]=kueue", "name labels too"},
		{"topoDiscovery.master.exports[0]=slurm", "/topoDiscovery/master/exports/0"},
		{"gpuScheduler.assign=gpu-pods", "wait for a scheduler that is not installed"},
		{"gpuScheduler.enabled=true,gpuScheduler.assign=gpu-pods", "needs MutatingAdmissionPolicy"},
		{"gpuScheduler.map.address=heddle-topo-master:9001", "/gpuScheduler/map/address"},
		{"gpuScheduler.podGroups[0]=scheduling.volcano.sh", "/gpuScheduler/podGroups/0"},
		{"gpuScheduler.map.maxAge=5", "/gpuScheduler/map/maxAge"},
		{"gpuScheduler.gpuAware.weight=-1", "/gpuScheduler/gpuAware/weight"},
		{"topoDiscovery.master.tlsAuthorityKey=a/b", "/topoDiscovery/master/tlsAuthorityKey"},
		{"gpuDevice.sGPUHybrid=true", "additional properties 'sGPUHybrid' not allowed"},
		{"driver.root=/run: x", "/driver/root"},
		{"gpuDevice.deviceListStrategy=volume-mounts", "/gpuDevice/deviceListStrategy"},
		{"gpuDevice.cdiHook=nvidia-cdi-hook", "/gpuDevice/cdiHook"},
		{"gpuDevice.imexChannels=none", "/gpuDevice/imexChannels"},
		{"gpuDevice.imexRequest=annotation", "needs gpuDevice.imexChannels"},
		{"gpuDevice.imexRequest=annotation,gpuDevice.imexChannels=0,gpuDevice.deviceListStrategy=envvar", "needs gpuDevice.deviceListStrategy: cdi"},
		{"gpuDevice.kubeletDir=/var/lib/kubelet/", "/gpuDevice/kubeletDir"},
		{"gpuDevice.maxSurge=0%", "/gpuDevice/maxSurge"},
		{"gpuDevice.enabled=true,gpuDevice.metricsPort=9101", "gpuDevice.metricsPort and gpuLabel.metricsPort are both 9101"},
		{"gpuDevice.replayDevices=/run/x", "set gpuDevice.machineConfigMap too"},
		{"driver.access=none", "/driver/access"},
		{"image.repository=https://registry.example.com", "/image/repository"},
		{"image.repository=", "--set image.repository=DOMAIN/PROJECT"},
		{"config.cluster.domains.vendor=Example_com", "/config/cluster/domains/vendor"},
		{"config.cluster.domains.company=example.com/x", "/config/cluster/domains/company"},
		{"config.cluster.mod=sgpu", "additional properties 'mod' not allowed"},
		{"config.nodes[0].mode=sgpu", "/config/nodes/0"},
		{"config.cluster.health.ignoredXIDs[0]=63", "additional properties 'ignoredXIDs' not allowed"},
		{"config.cluster.sgpu.enforce.memory=hard", "/config/cluster/sgpu/enforce/memory"},
		{"config.cluster.rdma.resources[0].share=2", "additional properties 'share' not allowed"},
		{"config.nodes[0].nodeName=n,config.nodes[0].topology.mod=auto", "additional properties 'mod' not allowed"},
		{"config.cluster.taints.effect=Never", "/config/cluster/taints/effect"},
		{"admissionPolicy.extraLabelKeys[0]=a*b*c", "/admissionPolicy/extraLabelKeys/0"},
		{"admissionPolicy.extraLabelKeys[0]=*", "/admissionPolicy/extraLabelKeys/0"},
		{"admissionPolicy.extraLabelKeys[0]=x'] + ['y", "/admissionPolicy/extraLabelKeys/0"},
		{"admissionPolicy.extraLabelKeys[0]=example.com/x/y", "/admissionPolicy/extraLabelKeys/0"},
		{"config.cluster.labels[0].key=x',config.cluster.labels[0].value=node.name", "/config/cluster/labels/0/key"},
	} {
		t.Run(tt.set, func(t *testing.T) {
			_, err := helm(t, "template", generated, chartDir, "-n", namespace, "--set", tt.set)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
