package doctor

import (
	"cmp"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
)

func taintsCommand(api *cluster.Flags) *cobra.Command {
	c := &cobra.Command{
		Use: "taints", Short: "Show which pods a taint would keep from a node", Args: cobra.NoArgs,
		Long: `Show the pods on a Node that do not tolerate the taint which a key of the
section taints of the configuration would set. They cannot be scheduled there
again; they keep running, unless the configured effect is NoExecute. Exit code 1
if there are any.`,
		Example: "  heddle doctor taints --if gpuProduct --node gpu-1",
	}
	key := c.Flags().String("if", "", "`key` of the taint: gpuProduct, usage or controlPlane")
	cli.Complete(c, "if", "gpuProduct", "usage", "controlPlane")
	name := api.NodeFlag(c, os.Getenv("NODE_NAME"), "`name` of the Node; default $NODE_NAME")
	var from source.Flags
	from.RegisterConfig(c.Flags())
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *key == "" || *name == "" {
			return cli.UsageErrorf(c, "--if and --node are needed")
		}
		cfg, err := from.Config()
		if err != nil {
			return err
		}
		client, err := api.Client()
		if err != nil {
			return err
		}
		node, err := cluster.Node(c.Context(), client, *name)
		if err != nil {
			return err
		}
		resolved := cfg.Resolve(node.Name, node.Labels).ForLabels(node.Labels)
		taint, ok, err := wouldBe(&resolved, *key, node.Labels)
		if err != nil {
			return cli.UsageErrorf(c, "%w", err)
		}
		if !ok {
			return output.Print(c, blocked{Pods: []blockedPod{}}, fmt.Sprintf(
				"Node %s has no label %s, so %s would set no taint.\n",
				node.Name, taint.Key, *key))
		}
		pods, err := cluster.Pods(c.Context(), client, node.Name)
		if err != nil {
			return err
		}
		return reportBlocked(c, output, node.Name, taint, blockedBy(pods.Items, taint))
	}
	return c
}

// blocked is the output of `heddle doctor taints` as an object.
type blocked struct {
	Taint *corev1.Taint `json:"taint"`
	Pods  []blockedPod  `json:"pods"`
}

// blockedPod is a pod that does not tolerate the taint. Owner is kind/name of its controller, empty without one.
type blockedPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Owner     string `json:"owner,omitempty"`
}

// wouldBe returns the taint that a key of the configuration sets. Its value is that
// of the label of the same name; ok is false on a node without it.
func wouldBe(c *config.NodeConfig, key string, labels map[string]string) (taint corev1.Taint, ok bool, err error) {
	taint.Effect = corev1.TaintEffect(c.Taints.Effect)
	switch key {
	case "gpuProduct":
		taint.Key = c.Domains.Product()
	case "usage":
		taint.Key = c.Domains.Usage()
	case "controlPlane":
		taint.Key = c.Domains.ControlPlane()
		return taint, true, nil
	default:
		return taint, false, fmt.Errorf("--if %s: not gpuProduct, usage or controlPlane", key)
	}
	taint.Value, ok = labels[taint.Key]
	return taint, ok, nil
}

func reportBlocked(c *cobra.Command, o *cli.Output, node string, taint corev1.Taint, pods []blockedPod) error {
	text := taint.ToString()
	if len(pods) == 0 {
		return o.Print(c, blocked{&taint, pods}, fmt.Sprintf("Every pod on Node %s tolerates %s.\n", node, text))
	}
	rows := [][]string{{"NAMESPACE", "NAME", "OWNER"}}
	for _, p := range pods {
		rows = append(rows, []string{p.Namespace, p.Name, cmp.Or(p.Owner, "-")})
	}
	problems, fate := len(pods), "these could not come back"
	switch taint.Effect {
	case corev1.TaintEffectNoExecute:
		fate = "these would be evicted at once and could not come back"
	case corev1.TaintEffectPreferNoSchedule:
		problems, fate = 0, "these could come back, if no other node takes them"
	case corev1.TaintEffectNoSchedule:
	}
	return o.PrintFindings(c, blocked{&taint, pods}, fmt.Sprintf(
		"With the taint %s on Node %s, %s:\n\n%s\nWhat they would need:\n\n"+
			"  tolerations:\n  - {key: %s, operator: Exists, effect: %s}\n",
		text, node, fate, cli.Table(rows), taint.Key, taint.Effect), problems)
}

// blockedBy returns the pods that could not be scheduled to a node with this taint. Pods that have ended do not
// come back anyway, and static pods ask no scheduler.
func blockedBy(pods []corev1.Pod, taint corev1.Taint) []blockedPod {
	all := []blockedPod{}
	for i := range pods {
		p := &pods[i]
		// The numeric operators are for numbers, which the values of heddle's taints are not.
		tolerates := schedulehelpers.TolerationsTolerateTaint(logr.Discard(), p.Spec.Tolerations, &taint, false)
		if cluster.Ended(p) || cluster.IsStatic(p) || tolerates {
			continue
		}
		owner := ""
		if o := metav1.GetControllerOfNoCopy(p); o != nil {
			owner = o.Kind + "/" + o.Name
		}
		all = append(all, blockedPod{p.Namespace, p.Name, owner})
	}
	return all
}
