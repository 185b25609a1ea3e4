package config_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/api/strict"
)

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name           string
		cluster, nodes string
		want           []string
	}{
		{"unknown field", "mode: native\nusge: training\n", "", []string{"cluster-config:2: usge: unknown key"}},
		{"unknown nested field", "rdma:\n  resources:\n  - name: rdma/a\n    selectors: {bus: [a]}\n", "", []string{
			"cluster-config:4: rdma.resources[0].selectors.bus: unknown key",
		}},
		{"section that there is not", "fabric: {}", "", []string{"cluster-config:1: fabric: unknown key"}},
		{"topology", "topology:\n  mode: dragonflies\n  nodeNumber: 0\n  staticFile: topo.yaml\n  sources: [ib, lldp, ib]\n", "", []string{
			`cluster-config:2: topology.mode: unsupported value "dragonflies": supported values are auto, dragonfly,`, "cluster-config:3: topology.nodeNumber: 0 is not between 1 and 4096",
			`cluster-config:4: topology.staticFile: invalid path "topo.yaml"`,
		}},
		{"topology source twice", "topology:\n  sources: [ib, lldp,\n    ib]\n", "", []string{"cluster-config:3: topology.sources[2]: duplicate value ib, the first is entry 0"}},
		{"levels of no custom mode", "topology:\n  mode: leaf\n  levels: [{kind: rack, by: path}]\n", "", []string{
			"cluster-config:3: topology.levels: are for mode custom; mode leaf defines its own levels",
		}},
		{"custom without levels", "topology:\n  mode: custom\n", "", []string{"cluster-config:1: topology.levels: are missing"}},
		{"levels of nothing", "topology:\n  mode: custom\n  levels: []\n", "", []string{"cluster-config:3: topology.levels: are missing"}},
		{"nine levels", "topology: {mode: custom, levels: [" + strings.Repeat("{kind: rack, by: path}, ", 9) + "]}", "", []string{
			"topology.levels: 9 levels, more than 8", "topology.levels[8].kind: rack is also the kind of level 0",
		}},
		{"level without its parts", "topology:\n  mode: custom\n  levels:\n  - nodes: 0\n", "", []string{
			"cluster-config:4: topology.levels[0].kind: is missing", "cluster-config:4: topology.levels[0].by: is missing",
		}},
		{"kinds of levels", "topology:\n  mode: custom\n  levels:\n  - {kind: Rack, by: path}\n  - {kind: node, by: leaf}\n  - {kind: a-b, by: leafs}\n", "", []string{
			`cluster-config:4: topology.levels[0].kind: invalid kind "Rack": want 1 to 20`, `cluster-config:5: topology.levels[1].kind: "node" is the kind of nodes`,
			`cluster-config:6: topology.levels[2].kind: invalid kind "a-b"`, `topology.levels[2].by: unsupported value "leafs"`,
		}},
		{"nodes of levels", "topology:\n  mode: custom\n  levels:\n  - {kind: rack, by: path, nodes: 4}\n  - {kind: pair, by: block}\n", "", []string{
			"cluster-config:4: topology.levels[0].nodes: is for levels by block, not by path",
			"cluster-config:5: topology.levels[1].nodes: is missing: levels by block need it",
		}},
		{"level with an unknown key", "topology: {mode: custom, levels: [{kind: rack, by: path, count: 2}]}", "", []string{
			"topology.levels[0].count: unknown key",
		}},
		{"an override that changes the mode", "topology: {mode: custom, levels: [{kind: rack, by: path}]}", "- nodeName: a\n  topology:\n    mode: leaf\n", []string{
			"nodes-config:2: [0].topology.levels: are for mode custom; mode leaf",
		}},
		{"cluster manager in the clear", "topology: {clusterManager: 'http://a.example.com'}", "", []string{`topology.clusterManager: invalid URL "http://a.example.com": want one such as https://`}},
		{"cluster manager with a password", "topology: {clusterManager: 'https://u:secret@a'}", "", []string{`"https://u:xxxxx@a" has a user in it`}},
		{"health check", "health: {disable: [xid, everything]}", "", []string{
			`health.disable[0]: unsupported value "xid"`, `health.disable[1]: unsupported value "everything"`,
		}},
		{"XID", "health: {fatalXIDs: [79, 0, XID 94]}", "", []string{
			`health.fatalXIDs[1]: 0 is not between 1 and 9999`, `health.fatalXIDs[2]: invalid value "XID 94": want a whole number`,
		}},
		{"XID in two lists", "health:\n  fatalXIDs: [94]\n  ignoreXIDs: [43,\n      94]", "", []string{
			"cluster-config:4: health.ignoreXIDs[1]: 94 is also health.fatalXIDs[0]",
		}},
		{"duration", "health: {downAfter: 10}", "", []string{`health.downAfter: invalid value "10": want a duration such as 30s`}},
		{"a long duration", "health: {upAfter: 2h}", "", []string{"health.upAfter: 2h0m0s is not between 0s and 1h"}},
		{"enum", "\nmode: Native", "", []string{`cluster-config:2: mode: unsupported value "Native": supported values are native, sgpu`}},
		{"enum in a list", "rdma: {resources: [{name: rdma/a, selectors: {linkTypes: [ethernet]}}]}", "", []string{
			`cluster-config:1: rdma.resources[0].selectors.linkTypes[0]: unsupported value "ethernet": supported values are ether, infiniband`,
		}},
		{"effect", "taints: {effect: noschedule}", "", []string{`taints.effect: unsupported value "noschedule"`}},
		{"number for text", "labels: [{key: a, value: 1}]", "", []string{`labels[0].value: invalid value "1": want a text: put it in quotes`}},
		{"text for bool", "controlPlane: \"true\"\n", "", []string{`controlPlane: invalid value "true": want true or false`}},
		{"text for number", "sgpu: {slotsPerGPU: many}", "", []string{`sgpu.slotsPerGPU: invalid value "many": want a whole number`}},
		{"fraction", "sgpu:\n  slotsPerGPU: 0.5", "- nodeName: a\n  sgpu: {slotsPerGPU: 1.5}\n  rdma: {resources: [{name: rdma/a, sharers: 1e3}]}\n", []string{
			`cluster-config:2: sgpu.slotsPerGPU: invalid value "0.5": want a whole number`,
			`nodes-config:2: [0].sgpu.slotsPerGPU: invalid value "1.5": want a whole number`,
			`nodes-config:3: [0].rdma.resources[0].sharers: invalid value "1e3": want a whole number`,
		}},
		{"beyond 64 bits", "sgpu: {slotsPerGPU: 99999999999999999999}", "", []string{"cluster-config:1: sgpu.slotsPerGPU: "}},
		{"number in a node selector", "", "- nodeSelector: {pool: 1}", []string{`nodes-config:1: [0].nodeSelector.pool: invalid value "1"`}},
		{"out of range", "sgpu: {slotsPerGPU: 0}\nrdma: {resources: [{name: rdma/a, sharers: 5000}]}", "", []string{
			"cluster-config:1: sgpu.slotsPerGPU: 0 is not between 1 and 100", "cluster-config:2: rdma.resources[0].sharers: 5000 is not between 1 and 4096",
		}},
		{"overcommit out of range", "sgpu:\n  memoryOvercommit: 0.9", "", []string{"cluster-config:2: sgpu.memoryOvercommit: 0.9 is not between 1 and 8"}},
		{"overcommit far out of range", "sgpu: {memoryOvercommit: 80}", "", []string{"sgpu.memoryOvercommit: 80 is not between 1 and 8"}},
		{"overcommit that is no number", "sgpu: {memoryOvercommit: .nan}", "", []string{"sgpu.memoryOvercommit: NaN is not between 1 and 8"}},
		{"overcommit in words", "sgpu: {memoryOvercommit: 150%}", "", []string{`sgpu.memoryOvercommit: invalid value "150%": want a number`}},
		{"overcommit below HAMi", "sgpu: {memoryOvercommit: 1.5, hami: true}", "", []string{
			"sgpu.memoryOvercommit: not with sgpu.hami",
		}},
		{"list for section", "sgpu: [1]", "", []string{`cluster-config:1: sgpu: invalid value "": want a section`}},
		{"text for list", "labels: a", "", []string{`labels: invalid value "a": want a list`}},
		{"section for text", "usage: {a: b}", "", []string{`usage: invalid value "": want a text`}},
		{"no value", "usage:", "", []string{"usage: has no value: remove the key"}},
		{"twice", "usage: training\nusage: hybrid", "", []string{"cluster-config:2: usage: duplicate key; the first is on line 1"}},
		{"anchors", "sgpu: &a {slotsPerGPU: 2}\n", "", []string{"sgpu: YAML anchors, aliases, merges and tags are not supported"}},
		{"no YAML", "a: [", "", []string{"cluster-config:1: invalid YAML: did not find expected node content"}},
		{"two documents", "mode: native\n---\nmode: sgpu\n", "", []string{"cluster-config:2: only one YAML document"}},
		{"nodes are a list", "", "nodeName: a", []string{`nodes-config:1: invalid value "": want a list`}},
		{"override that matches no node", "", "- mode: sgpu", []string{"nodes-config:1: [0]: has neither nodeName nor nodeSelector"}},
		{"bad glob", "", "- nodeName: '[a'", []string{"[0].nodeName: \"[a\": syntax error in pattern"}},
		{"bad selector", "", "- nodeSelector: {'a b': 'c d'}", []string{`[0].nodeSelector.a b: "a b": name part must`, `"c d": a valid label`}},
		{"selector by what it decides", "", "- {nodeSelector: {heddle.dev/node.usage: training}, usage: hybrid}", []string{
			"nodes-config:1: [0].nodeSelector.heddle.dev/node.usage: is a label that this configuration decides; it cannot choose",
		}},
		{"selector by another section's rule", "labels: [{key: pool, value: \"'x'\"}]", "- nodeName: a\n- nodeSelector: {pool: x}\n  labels: []\n", []string{
			"nodes-config:2: [1].nodeSelector.pool: is a label that this configuration decides",
		}},
		{"selector by what mode decides", "", "- nodeSelector: {nvidia.com/gpu.sharing-strategy: none}\n  mode: sgpu\n", []string{
			"[0].nodeSelector.nvidia.com/gpu.sharing-strategy: is a label that this configuration decides",
		}},
		{"selector by a label that then moves", "", "- nodeSelector: {nvidia.com/gpu.product: NVIDIA-H20}\n  domains: {vendor: a.com}\n", []string{
			"nodes-config:1: [0].nodeSelector.nvidia.com/gpu.product: is a label that goes away under the domains of this entry",
		}},
		{"tags", "mode: !!str sgpu\ntaints: !x {effect: NoExecute}\nrdma: {roles: {fabric: [!!binary bWx4]}}\n", "", []string{
			"cluster-config:1: mode: YAML anchors", "cluster-config:2: taints: YAML anchors", "cluster-config:3: rdma.roles.fabric[0]: YAML anchors",
		}},
		{"a key by another name", "&mode usage: training\n*mode : native\n", "", []string{"cluster-config:1: usage: YAML anchors", "cluster-config:2: mode: YAML anchors"}},
		{"a merge", "<<: {mode: sgpu}\n", "", []string{"cluster-config:1: <<: YAML anchors, aliases, merges"}},
		{"bad indentation", "mode: native\n\tusage: x\n", "", []string{"cluster-config:2: invalid YAML: found a tab character that violates indentation"}},
		{"control characters", "mode: \"\x01\"", "", []string{"cluster-config: invalid YAML: control characters are not allowed"}},
		{"the kubelet's labels", "labels: [{key: kubernetes.io/hostname, value: node}]", "", []string{"labels[0].key: kubernetes.io/hostname is the kubelet's"}},
		{"required", "labels: [{key: a}]\nrdma: {resources: [{}]}", "", []string{"cluster-config:1: labels[0].value: is missing", "cluster-config:2: rdma.resources[0].name: is missing"}},
		{"two rules", "labels:\n- {key: a, value: \"'1'\"}\n- {key: a, value: \"'2'\"}", "", []string{"cluster-config:3: labels[1].key: two rules for a; the first is labels[0]"}},
		{"rule with a bad key", "labels: [{key: 'a b', value: node}]", "", []string{`labels[0].key: "a b": name part must`}},
		{"rule with a key of heddle's", "labels: [{key: nvidia.com/gpu.product, value: node}]", "", []string{"labels[0].key: nvidia.com/gpu.product is a label that heddle writes itself"}},
		{"and of topo-master", "labels: [{key: heddle.dev/topology.leaf, value: node}]", "", []string{"is a label that heddle writes itself"}},
		{"rule that does not compile", "labels:\n- {key: a, value: gpu.modle}", "", []string{"cluster-config:2: labels[0].value: column 4: undefined field 'modle'"}},
		{"rule of the wrong types", "labels:\n- key: a\n  value: gpu.count\n  when: node\n", "", []string{
			"cluster-config:3: labels[0].value: is int, not a text: wrap it in string()", "cluster-config:4: labels[0].when: is string, not true or false",
		}},
		{"rule that costs too much", "labels:\n- key: a\n  value: node\n  when: machine.pci.all(a, machine.pci.all(b, machine.pci.all(c, machine.pci.all(d, a == d))))\n", "", []string{"labels[0].when: too costly"}},
		{"duplicate resource", "resources: {gpu: nvidia.com/gpu, sgpu: nvidia.com/gpu}\nrdma: {resources: [{name: nvidia.com/vcore}]}", "", []string{
			"cluster-config:1: resources.sgpu: nvidia.com/gpu is the name of resources.gpu too", "cluster-config:2: rdma.resources[0].name: nvidia.com/vcore is the name of resources.vcore too",
		}},
		{"name of one maker's GPUs", "domains: {vendor: auto}\nresources: {sgpu: nvidia.com/gpu}", "", []string{
			"cluster-config:2: resources.sgpu: nvidia.com/gpu is the name of resources.gpu too",
		}},
		{"MiB that the kubelet counts", "resources: {vmemoryUnit: MiB}\nsgpu: {advertise: all}", "", []string{
			"cluster-config:2: sgpu.advertise: the kubelet counts a device for each unit of nvidia.com/vmemory, so all takes resources.vmemoryUnit GiB",
		}},
		{"two defaults of memory", "sgpu: {defaults: {vmemory: 4, vmemoryPercentage: 25}}", "", []string{
			"cluster-config:1: sgpu.defaults.vmemory: not with sgpu.defaults.vmemoryPercentage 25",
		}},
		{"a default of memory out of range", "sgpu: {defaults: {vmemory: -1}}", "", []string{"sgpu.defaults.vmemory: -1 is not between 0 and"}},
		{"units and defaults", "resources: {vmemoryUnit: Mi, vmemoryPercentage: nvidia.com/gpu}\nsgpu: {defaults: {vcore: 101, vmemoryPercentage: 0, policy: best}}", "", []string{
			`cluster-config:1: resources.vmemoryUnit: unsupported value "Mi"`, "cluster-config:2: sgpu.defaults.vcore: 101 is not between 0 and 100",
			"sgpu.defaults.vmemoryPercentage: 0 is not between 1 and 100", `sgpu.defaults.policy: unsupported value "best"`,
		}},
		{"percentage has another's name", "resources: {vmemoryPercentage: nvidia.com/gpu}", "", []string{
			"resources.vmemoryPercentage: nvidia.com/gpu is the name of resources.gpu too",
		}},
		{"resource without domain", "rdma: {resources: [{name: hca}]}", "", []string{"has no domain: write domain/name"}},
		{"resource of Kubernetes", "resources: {gpu: kubernetes.io/gpu}", "", []string{"is in a domain of Kubernetes' own"}},
		{"domain", "domains: {vendor: Nvidia, company: '', card: a/b}", "", []string{
			`domains.vendor: "Nvidia": a lowercase RFC 1123 subdomain must`, `domains.company: "": a lowercase RFC 1123`, "domains.card: ",
		}},
		{"GPU twice", "sgpu: {gpus: [0, 1, 0]}", "", []string{"sgpu.gpus[2]: duplicate value 0, the first is entry 0"}},
		{"no GPU", "sgpu: {gpus: [x1, -1, 01]}", "", []string{`"x1" is neither an index`, `"-1" is neither`, `"01" is neither`}},
		{"hex", "rdma: {resources: [{name: rdma/a, selectors: {vendors: [mellanox]}}]}", "", []string{`vendors[0]: invalid PCI number "mellanox"`}},
		{"override breaks the cluster's text", "labels: [{key: a.com/node.usage, value: node}]", "- {nodeName: x, domains: {company: a.com}}", []string{
			"cluster-config:1: labels[0].key: a.com/node.usage is a label that heddle writes itself (with nodes-config[0])",
		}},
		{"fault of the cluster is reported once", "labels: [{key: a, value: nodes}]", "- {nodeName: x}\n- {nodeName: y}", []string{"undeclared reference to 'nodes'"}},
		{"all faults at once", "mode: x\nusage: y", "- {nodeName: z, mode: w}", []string{"cluster-config:1: mode", "cluster-config:2: usage", "nodes-config:1: [0].mode"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := config.Parse(files(tt.cluster, tt.nodes), &rule.CEL{})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if strings.Count(err.Error(), want) != 1 {
					t.Errorf("%q is not there once in:\n%v", want, err)
				}
			}
			var fault *strict.Error
			if !errors.As(err, &fault) || fault.File == "" {
				t.Errorf("no strict.Error in %v", err)
			}
		})
	}
}

// A label that describes hardware may choose a configuration, because it stays.
func TestSelectorsThatHold(t *testing.T) {
	parse(t, "labels: [{key: a, value: node}]", `
- nodeSelector: {nvidia.com/gpu.product: NVIDIA-H20, nvidia.com/gpu.count: "8"}
  mode: sgpu
- nodeSelector: {pool: x}
  domains: {vendor: a.com}
`)
}
