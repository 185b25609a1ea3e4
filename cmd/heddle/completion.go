package main

import (
	"github.com/spf13/cobra"
)

// completionCommand is `heddle completion`, in place of cobra's, which exits with 0 without a shell and
// with an unknown one.
func completionCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "Print the script by which a shell completes heddle's commands",
		Long: `Print the script by which a shell completes heddle's commands. bash needs its package
bash-completion, and zsh compinit.`,
		Example: `  source <(heddle completion bash)                                            this shell alone
  heddle completion bash > /etc/bash_completion.d/heddle                      every new one
  heddle completion zsh > "${fpath[1]}/_heddle"
  heddle completion fish > ~/.config/fish/completions/heddle.fish
  heddle completion powershell | Out-String | Invoke-Expression`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		root, out := c.Root(), c.OutOrStdout()
		switch args[0] {
		case "bash":
			return root.GenBashCompletionV2(out, true)
		case "fish":
			return root.GenFishCompletion(out, true)
		case "zsh":
			return root.GenZshCompletion(out)
		}
		return root.GenPowerShellCompletionWithDesc(out)
	}
	return c
}
