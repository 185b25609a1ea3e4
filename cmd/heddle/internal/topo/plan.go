package topo

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/manifest"
)

// NewPlanCommand returns `heddle plan`.
func NewPlanCommand() *cobra.Command {
	m := &master{}
	file := ""
	c := &cobra.Command{
		Use: "plan -f FILE", Short: "Show whether a job would fit, where, or about when", Args: cobra.NoArgs,
		Long: `Show whether a job would fit, where, or about when.

It plans the pods of a manifest as heddle-scheduler does, on the cluster as it
is now, and creates nothing. Kinds that make pods, in any number of documents:

` + kinds() + `
PodGroups, ResourceClaims and ResourceClaimTemplates count with them.

If they do not fit, it shows what is missing, the smallest change with which
they would fit, and when they fit by the expected ends of running pods:
activeDeadlineSeconds, and the annotation heddle.dev/expected-duration. It
counts what heddle why counts.

The exit code is 0 if all pods fit now, 1 if not, and 2 if that is not known.`,
		Example: `  heddle plan -f job.yaml
  kubectl kustomize . | heddle plan -f - -o json`,
	}
	m.register(c)
	c.Flags().StringVarP(&file, "filename", "f", "", "the manifest; - reads the standard input")
	_ = c.MarkFlagRequired("filename")
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		namespace, err := m.cluster.Namespace()
		if err != nil {
			return err
		}
		set, err := readManifest(c, file, namespace)
		if err != nil {
			return err
		}
		lister, groups, err := m.lister(c)
		if err != nil {
			return err
		}
		fit, err := lister.Fit(c.Context(), groups, set)
		if err != nil {
			return err
		}
		text := fitText(fit, time.Now())
		if len(groups) == 0 {
			text += withoutGroups
		}
		if err := output.Print(c, fit, text); err != nil || fit.Fits {
			return err
		}
		return cli.ErrFindings
	}
	return c
}

// kinds returns the kinds in lines.
func kinds() string {
	lines := []string{""}
	for _, kind := range manifest.Kinds() {
		if last := len(lines) - 1; len(lines[last])+len(kind) < 70 {
			lines[last] += "  " + kind
		} else {
			lines = append(lines, "  "+kind)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// readManifest reads a file, or the standard input.
func readManifest(c *cobra.Command, file, namespace string) (*manifest.Set, error) {
	from := c.InOrStdin()
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // It was only read.
		from = f
	}
	set, err := manifest.Read(from, namespace)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return set, nil
}

// fitText returns the answer for people.
func fitText(fit *explain.Fit, now time.Time) string {
	var b strings.Builder
	for i := range fit.Jobs {
		if j := &fit.Jobs[i]; j.Note != "" {
			fmt.Fprintf(&b, "%s %s/%s: %s.\n", j.Kind, j.Namespace, j.Name, j.Note)
		}
	}
	if len(fit.Ignored) > 0 {
		fmt.Fprintf(&b, "Not planned: %s.\n", strings.Join(fit.Ignored, ", "))
	}
	for i := range fit.Gangs {
		g := &fit.Gangs[i]
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		what := fmt.Sprintf("%s/%s, %s", g.Namespace, g.Name, cli.Count(g.Pods, "pod"))
		if len(g.Places) > 0 {
			fmt.Fprintf(&b, "%s: fits now%s\n%s", what, within(g), placeTable(g.Places))
			continue
		}
		fmt.Fprintf(&b, "%s: does not fit now\n", what)
		if len(g.Asks) > 0 {
			b.WriteString(whyRoom(&g.Answer, now))
		}
		b.WriteString(whenText(g.When, now))
	}
	return b.String()
}

// within says which group has the nodes.
func within(g *explain.Planned) string {
	switch g.Kind {
	case "":
		return ""
	case v1alpha1.KindNode:
		return " on node " + g.Group
	}
	return " in " + g.Kind + " " + g.Group
}

func placeTable(places []explain.Place) string {
	rows := [][]string{{"RANK", "POD", "NODE"}}
	for rank, p := range places {
		node := p.Node
		if node == "" {
			node = "- (beyond its minimum)"
		}
		rows = append(rows, []string{fmt.Sprint(rank), p.Pod, node})
	}
	return cli.Table(rows)
}

// whenText says when pods fit, and what that assumes.
func whenText(w *explain.When, now time.Time) string {
	switch {
	case w == nil:
		return ""
	case w.Never != "":
		return "\nThey never fit: " + cli.Printable(w.Never) + "\n"
	case w.At.IsZero():
		return fmt.Sprintf("\nWhen is not known: %s with devices %s no expected end (annotation %s).\n",
			cli.Count(w.Endless, "running pod"), map[bool]string{true: "has", false: "have"}[w.Endless == 1],
			wellknown.ExpectedDuration)
	}
	text := fmt.Sprintf("\nAbout when: in %s, at %s, after the end of %s, if no other pod gets their room.\n",
		duration.HumanDuration(w.At.Sub(now)), w.At.UTC().Format(time.RFC3339), strings.Join(w.After, ", "))
	if w.Ahead > 0 {
		text += fmt.Sprintf("%s of the same priority or a higher one may start first.\n", cli.Count(w.Ahead, "waiting pod"))
	}
	return text
}
