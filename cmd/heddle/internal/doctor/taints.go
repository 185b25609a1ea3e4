package doctor

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

const taintsUsage = `heddle doctor taints: who could not come back if a taint were set?

  heddle doctor taints --if gpuProduct --node gpu-1

Lists the pods on a Node, by owner, that do not tolerate the taint that a key
under "taints" in the configuration would set. They cannot be scheduled there
again; they go on running, unless the configured effect is NoExecute. Exit code
1 if there are any.`

// runTaints is `heddle doctor taints`.
func runTaints(ctx context.Context, args []string, stdout io.Writer) error {
	set := cli.Flags("doctor taints", taintsUsage, stdout)
	var api cluster.Flags
	api.Register(set.FlagSet)
	key := set.String("if", "", "`KEY` of the taint: gpuProduct, nodeUsage or controlPlane")
	name := set.String("node", os.Getenv("NODE_NAME"), "`NAME` of the Node; default $NODE_NAME")
	var from source.Flags
	from.RegisterConfig(set.FlagSet)
	if err := set.Read(args, 0); err != nil {
		return err
	}
	if *key == "" || *name == "" {
		return cli.Usagef("doctor taints", "doctor taints: --if and --node are needed")
	}
	cfg, err := from.Config()
	if err != nil {
		return err
	}
	client, err := api.Client()
	if err != nil {
		return err
	}
	node, err := cluster.Node(ctx, client, *name)
	if err != nil {
		return err
	}
	resolved := cfg.Resolve(node.Name, node.Labels)
	taint, ok, err := wouldBe(&resolved, *key, node.Labels)
	if err != nil {
		return err
	}
	if !ok {
		return say(stdout, "Node %s has no label %s, so %s would set no taint.\n", node.Name, taint.Key, *key)
	}
	pods, err := cluster.Pods(ctx, client, node.Name)
	if err != nil {
		return err
	}
	return reportBlocked(stdout, node.Name, taint, Blocked(pods, taint))
}

// wouldBe is the taint that a key of the configuration sets. Its value is that
// of the label of the same name; ok is false on a node without it.
func wouldBe(c *config.NodeConfig, key string, labels map[string]string) (taint corev1.Taint, ok bool, err error) {
	taint.Effect = corev1.TaintEffect(c.Taints.Effect)
	switch key {
	case "gpuProduct":
		taint.Key = c.Domains.Product()
	case "nodeUsage":
		taint.Key = c.Domains.Usage()
	case "controlPlane":
		taint.Key = c.Domains.ControlPlane()
		return taint, true, nil
	default:
		return taint, false, cli.Usagef("doctor taints", "--if %s: not gpuProduct, nodeUsage or controlPlane", key)
	}
	taint.Value, ok = labels[taint.Key]
	return taint, ok, nil
}

func reportBlocked(w io.Writer, node string, taint corev1.Taint, groups []Group) error {
	text := nodesync.FormatTaint(taint)
	if len(groups) == 0 {
		return say(w, "Every pod on Node %s tolerates %s.\n", node, text)
	}
	rows := [][]string{{"OWNER", "NAMESPACE", "NAME", "PODS"}}
	for _, g := range groups {
		rows = append(rows, []string{g.Kind, g.Namespace, g.Name, some(g.Pods)})
	}
	err := say(w, "With the taint %s on Node %s, %s:\n\n%s\nWhat they would need:\n\n"+
		"  tolerations:\n  - {key: %s, operator: Exists, effect: %s}\n",
		text, node, fate(taint.Effect), cli.Table(rows, 2), taint.Key, taint.Effect)
	if err != nil || taint.Effect == corev1.TaintEffectPreferNoSchedule {
		return err
	}
	return cli.ErrFindings
}

// fate is what becomes of pods that do not tolerate a taint.
func fate(effect corev1.TaintEffect) string {
	switch effect {
	case corev1.TaintEffectNoExecute:
		return "these would be evicted at once and could not come back"
	case corev1.TaintEffectPreferNoSchedule:
		return "these could come back, if no other node takes them"
	case corev1.TaintEffectNoSchedule:
	}
	return "these could not come back"
}

// maxPods is how many pods of one owner are named.
const maxPods = 4

func some(pods []string) string {
	if more := len(pods) - maxPods; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(pods[:maxPods], " "), more)
	}
	return strings.Join(pods, " ")
}

func say(w io.Writer, format string, args ...any) error {
	if _, err := fmt.Fprintf(w, format, args...); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
