"""The causal testbed is trained as it is rolled out."""

import torch
from support.long_video import TOKENS, chunks, condition, tiny_wan

from diffcache import rollout
from diffcache.evals.training.causal_wan import TeacherForcing, noised

FRAMES = 5


def test_a_noisy_frame_sees_what_a_rollout_would_show_it():
    net, text = tiny_wan(), condition()["encoder_hidden_states"][:, :3]
    clean = torch.cat(list(chunks(FRAMES, 1)), 2)
    noisy, _, sigma = noised(clean, torch.Generator().manual_seed(0))
    with torch.no_grad(), rollout(net, "everything") as video:
        forced = TeacherForcing(net, FRAMES, TOKENS)(clean, noisy, sigma, text)
        for i in range(FRAMES):
            frame = video(noisy[:, :, i : i + 1], sigma[:, i] * 1000, text, return_dict=False)[0]
            assert float((frame - forced[:, :, i : i + 1]).abs().max()) < 1e-5
            video.write(clean[:, :, i : i + 1], torch.zeros(2), text)


def test_each_frame_has_its_own_level_of_noise():
    clean = torch.randn(2, 4, FRAMES, 4, 4)
    noisy, velocity, sigma = noised(clean, torch.Generator().manual_seed(0), most=0.5)
    assert sigma.unique().numel() == 2 * FRAMES
    assert float(sigma.min()) > 0
    assert float(sigma.max()) < 0.5
    level = sigma[:, None, :, None, None]
    assert torch.allclose(noisy - level * velocity, clean, atol=1e-5)


def test_a_share_of_frames_is_pure_noise():
    clean = torch.randn(50, 4, FRAMES, 4, 4)
    noisy, velocity, sigma = noised(clean, torch.Generator().manual_seed(0), pure=0.25)
    pure = sigma == 1
    assert 0.15 < float(pure.float().mean()) < 0.35
    of_pure = pure[:, None, :, None, None].expand_as(clean)
    assert torch.allclose(noisy[of_pure], (velocity + clean)[of_pure], atol=1e-6)
