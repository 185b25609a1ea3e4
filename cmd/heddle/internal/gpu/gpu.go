// Package gpu is `heddle gpu`: it takes single GPUs of a node out and puts them
// back, has the node let go of their driver, and shows how each is allocated. It
// writes two annotations of the Node, and never touches a pod.
package gpu

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// NewCommand makes `heddle gpu`.
func NewCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "gpu COMMAND", DisableFlagsInUseLine: true, Short: "Take a GPU out for repair, or put it back",
		Long: `Take a GPU out for repair, or put it back.

Pods that have the GPU keep running. A cordon is an annotation of the Node, and
survives all restarts until uncordon removes it. GPU is an index, a UUID or a
PCI address, as list and nvidia-smi show them.`,
		Args: cobra.NoArgs, RunE: cli.NeedCommand,
	}
	var api cluster.Flags
	api.Register(parent)
	parent.AddCommand(listCommand(&api),
		cordonCommand(&api, "cordon", "Keep new pods from GPUs", true),
		cordonCommand(&api, "uncordon", "Let new pods have GPUs again", false), releaseCommand(&api))
	return parent
}

func cordonCommand(api *cluster.Flags, verb, short string, cordon bool) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NODE GPU...", Short: short, Args: cobra.MinimumNArgs(2), ValidArgsFunction: api.CompleteNodes,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := api.Client()
			if err != nil {
				return err
			}
			uuids, err := Resolve(c.Context(), client, args[0], args[1:], !cordon)
			if err != nil {
				return err
			}
			for _, uuid := range uuids {
				text, err := Change(c.Context(), client, args[0], uuid, cordon)
				if err != nil {
					return err
				}
				if err := cli.Write(c, fmt.Sprintf("GPU %s of node %s %s\n", uuid, args[0], text)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// Change cordons a GPU, or the opposite, and returns what it is then.
func Change(ctx context.Context, client *cluster.Client, name, uuid string, cordon bool) (string, error) {
	text, already := "is allocated again.", "was not cordoned."
	if cordon {
		text, already = "is cordoned: no new pod gets it, and pods that have it run on.", "was cordoned already."
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := cluster.Node(ctx, client, name)
		if err != nil {
			return err
		}
		cordoned, err := wellknown.ParseCordoned(node.Annotations[wellknown.CordonedGPUs])
		if err != nil {
			return fmt.Errorf("node %s: %w: correct the annotation by hand", name, err)
		}
		next := slices.DeleteFunc(slices.Clone(cordoned), func(s string) bool { return s == uuid })
		if cordon {
			next = slices.Sorted(slices.Values(append(next, uuid)))
		}
		switch {
		case slices.Equal(next, cordoned):
			text = already
			return nil
		case len(next) > wellknown.MaxCordoned:
			return fmt.Errorf("node %s: more than %d GPUs would be cordoned", name, wellknown.MaxCordoned)
		}
		return write(ctx, client, node, wellknown.CordonedGPUs, wellknown.FormatCordoned(next))
	})
	return text, err
}

// write sets an annotation, empty removes it, unless another client has written
// the Node since it was read.
func write(ctx context.Context, client rest.Interface, node *corev1.Node, key, value string) error {
	annotation := map[string]any{key: nil}
	if value != "" {
		annotation[key] = value
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": annotation,
	}})
	if err != nil {
		return err
	}
	err = client.Patch(types.MergePatchType).Resource("nodes").Name(node.Name).
		VersionedParams(&metav1.PatchOptions{FieldManager: "heddle-card"}, metav1.ParameterCodec).
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("annotate node %s: %w", node.Name, err)
	}
	return nil
}

// entry is a GPU as list shows it.
type entry struct {
	Node string `json:"node"`
	// Index is nil for a missing or unknown GPU.
	Index    *int   `json:"index"`
	UUID     string `json:"uuid"`
	PCI      string `json:"pci,omitempty"`
	Mode     string `json:"mode,omitempty"`
	Cordoned bool   `json:"cordoned"`
	Pending  string `json:"pending,omitempty"`
}

func listCommand(api *cluster.Flags) *cobra.Command {
	c := &cobra.Command{
		Use: "list (NODE | -l SELECTOR)", Short: "Show how each GPU of a node, or of several, is allocated",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: api.CompleteNodes,
	}
	selector := c.Flags().StringP("selector", "l", "", "label `selector` of the nodes")
	output := cli.AddOutput(c, cli.FormatName)
	c.RunE = func(c *cobra.Command, args []string) error {
		if (len(args) == 0) == (*selector == "") {
			return cli.UsageErrorf(c, "a NODE or --selector is needed")
		}
		client, err := api.Client()
		if err != nil {
			return err
		}
		nodes, err := nodesOf(c.Context(), client, args, *selector)
		if err != nil {
			return err
		}
		all, text := []entry{}, ""
		for i := range nodes {
			node := &nodes[i]
			cordoned, invalid := wellknown.ParseCordoned(node.Annotations[wellknown.CordonedGPUs])
			there, unknown := cluster.Report(c.Context(), client, node.Name)
			all = append(all, entries(node.Name, there, cordoned)...)
			if unknown != nil {
				text += fmt.Sprintf("The GPUs of node %s are not known: %v.\n\n", node.Name, unknown)
			}
			if invalid != nil {
				text += fmt.Sprintf("node %s: %v\n\n", node.Name, invalid)
			}
		}
		output.Names = nil
		for _, e := range all {
			output.Names = append(output.Names, "gpu/"+e.UUID)
		}
		return output.Print(c, all, text+table(all))
	}
	output.AddWatch(c)
	return c
}

// nodesOf returns a Node by its name, or those that a selector matches.
func nodesOf(ctx context.Context, client rest.Interface, names []string, selector string) ([]corev1.Node, error) {
	if len(names) > 0 {
		node, err := cluster.Node(ctx, client, names[0])
		if err != nil {
			return nil, err
		}
		return []corev1.Node{*node}, nil
	}
	request := client.Get().Resource("nodes").Param("labelSelector", selector)
	list, err := cluster.Read[corev1.NodeList](ctx, request, "Nodes")
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// entries returns the GPUs of a node, and the cordoned ones that it does not have. there is nil if its device plugin
// does not answer.
func entries(node string, there *report.Report, cordoned []string) (all []entry) {
	if there != nil {
		for i := range there.GPUs {
			g := &there.GPUs[i]
			all = append(all, entry{
				Node: node, Index: &g.Index, UUID: g.UUID, PCI: g.PCI, Mode: g.Mode,
				Cordoned: slices.Contains(cordoned, g.UUID), Pending: g.Pending(),
			})
		}
	}
	for _, uuid := range cordoned {
		if !slices.ContainsFunc(all, func(e entry) bool { return e.UUID == uuid }) {
			all = append(all, entry{Node: node, UUID: uuid, Cordoned: true})
		}
	}
	return all
}

func table(all []entry) string {
	rows := [][]string{{"NODE", "GPU", "UUID", "PCI", "MODE", "CORDONED", "PENDING"}}
	for _, e := range all {
		index, cordoned := "?", "no"
		if e.Index != nil {
			index = fmt.Sprint(*e.Index)
		}
		if e.Cordoned {
			cordoned = "yes"
		}
		rows = append(rows, []string{
			e.Node, index, e.UUID, cmp.Or(e.PCI, "-"), cmp.Or(e.Mode, "-"), cordoned, cmp.Or(e.Pending, "-"),
		})
	}
	return cli.Table(rows)
}
