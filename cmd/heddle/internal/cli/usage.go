package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Width is the number of columns of a help text.
const Width = 80

// UsageErrorf returns an error of the command line, in the words of kubectl.
func UsageErrorf(c *cobra.Command, format string, args ...any) error {
	return fmt.Errorf("%w\nSee '%s --help' for usage", fmt.Errorf(format, args...), c.CommandPath())
}

// NeedCommand is the RunE of commands that only have others below them.
func NeedCommand(c *cobra.Command, _ []string) error { return UsageErrorf(c, "no command") }

// SetUsage gives a command and all below it usage and errors as kubectl has them.
func SetUsage(root *cobra.Command) {
	root.SetUsageFunc(usage)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		unknown, ok := errors.AsType[*pflag.NotExistError](err)
		if !ok {
			return UsageErrorf(c, "%w", err)
		}
		known := &cobra.Command{SuggestionsMinimumDistance: 2}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			known.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		})
		return UsageErrorf(c, "%w%s", err, didYouMean("--", known.SuggestionsFor(unknown.GetSpecifiedName())))
	})
	checkArgs(root)
}

// checkArgs adds the usage to the errors about arguments.
func checkArgs(c *cobra.Command) {
	check := c.Args
	c.Args = func(c *cobra.Command, args []string) error {
		if c.HasSubCommands() && len(args) > 0 {
			c.SuggestionsMinimumDistance = 2
			return UsageErrorf(c, "unknown command %q for %q%s", args[0], c.CommandPath(),
				didYouMean("", c.SuggestionsFor(args[0])))
		}
		if check == nil {
			return nil
		}
		if err := check(c, args); err != nil {
			return UsageErrorf(c, "%w\nUsage: %s", err, c.UseLine())
		}
		return nil
	}
	for _, below := range c.Commands() {
		checkArgs(below)
	}
}

func didYouMean(prefix string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "\n\nDid you mean this?\n\t" + prefix + strings.Join(names, "\n\t"+prefix) + "\n"
}

// usage writes the usage of a command within [Width] columns.
func usage(c *cobra.Command) error {
	var b strings.Builder
	if c.HasExample() {
		b.WriteString("Examples:\n" + c.Example + "\n\n")
	}
	if c.HasAvailableSubCommands() {
		b.WriteString("Available Commands:\n")
		for _, below := range c.Commands() {
			if below.IsAvailableCommand() {
				fmt.Fprintf(&b, "  %-14s  %s\n", below.Name(), below.Short)
			}
		}
		b.WriteString("\n")
	}
	if flags := c.LocalFlags().FlagUsagesWrapped(Width); flags != "" {
		b.WriteString("Options:\n" + flags + "\n")
	}
	b.WriteString("Usage:\n  " + c.UseLine() + "\n\n")
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "Use \"%s COMMAND --help\" for more information about a command.\n", c.CommandPath())
	}
	if c.Flags().Lookup("kubeconfig") != nil || c.PersistentFlags().Lookup("kubeconfig") != nil {
		fmt.Fprintf(&b, "Use \"%s options\" for the options of the servers.\n", c.Root().DisplayName())
	}
	_, err := fmt.Fprintln(c.OutOrStderr(), strings.TrimSpace(b.String()))
	return err
}
